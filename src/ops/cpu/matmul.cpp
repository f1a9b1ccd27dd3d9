#include "ops/cpu/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/product.h"

namespace quern::cpu {
namespace {

inline constexpr int64_t kPiece = 32;  // outputs of the smallest piece of work

// Outputs a piece: as few as share an unpacking, or more, so that a thread asks for what comes next (ask in
// vector-inl.h), but enough pieces to go round.
int64_t piece_outputs(int64_t outputs, int threads) {
  const int64_t even = outputs / (threads * 16) / kPiece * kPiece;
  return std::clamp<int64_t>(even, kPiece, 8 * kPiece);
}

}  // namespace

void matmul(Stream& s, std::span<const Input> inputs, std::span<const RowProduct> products) {
  QUERN_CHECK(inputs.size() <= kMaxInputs, "matmul: too many inputs");
  ScratchScope scope(s);
  const ProductLevel& level = product_levels().back();
  const std::byte* rounded[kMaxInputs] = {};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Input& in = inputs[i];
    const bool rounds = std::any_of(products.begin(), products.end(), [&](const RowProduct& p) {
      return p.input == static_cast<int>(i) && takes_int8(*p.w);
    });
    if (!rounds || in.n_rows == 0) continue;
    const int64_t bytes = int8_row_bytes(in.k);
    std::byte* to = s.scratch(DType::U8, {in.n_rows, bytes}).data;
    rounded[i] = to;
    const auto round = [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) level.round_row(in.x + r * in.stride, in.k, to + r * bytes);
    };
    // On the calling thread where the work is small beside waking the others.
    if (in.n_rows * in.k <= 32768) {
      round(0, in.n_rows);
    } else {
      s.pool().parallel_for(in.n_rows, 8, round);
    }
  }
  // Piece i of the range belongs to the last product whose first piece is not beyond i.
  const auto count = static_cast<int64_t>(products.size());
  int64_t outputs = 0;
  for (const RowProduct& p : products) outputs += p.n_rows > 0 ? p.w->n() : 0;
  const int64_t step = piece_outputs(outputs, s.pool().size());
  int64_t* first = s.scratch(DType::I64, {1, count + 1}).as<int64_t>();
  first[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    const RowProduct& p = products[static_cast<size_t>(i)];
    first[i + 1] = first[i] + (p.n_rows > 0 ? (p.w->n() + step - 1) / step : 0);
  }
  s.pool().parallel_for(first[count], 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t i = std::upper_bound(first, first + count + 1, piece) - first - 1;
      const RowProduct& p = products[static_cast<size_t>(i)];
      const Input& in = inputs[static_cast<size_t>(p.input)];
      const int64_t n0 = (piece - first[i]) * step, n1 = std::min(n0 + step, p.w->n());
      const ProductJob job{.w = p.w,
                           .x = in.x,
                           .x_stride = in.stride,
                           .rounded = rounded[p.input],
                           .x_begin = p.x_begin,
                           .x_rows = p.x_rows,
                           .y = p.y,
                           .y_stride = p.y_stride,
                           .y_rows = p.y_rows,
                           .n_rows = p.n_rows};
      (takes_int8(*p.w) ? level.int8_product : level.f32_product)(job, n0, n1);
      if (p.w->data.dtype != DType::NVFP4 || p.w->global_scale == 1) continue;
      for (int64_t r = 0; r < job.n_rows; ++r) {  // the blocks know nothing of the factor of the whole
        for (int64_t n = n0; n < n1; ++n) job.y_row(r)[n] *= p.w->global_scale;
      }
    }
  });
}

}  // namespace quern::cpu
