#include "checkpoint/tensor_export.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "ops/quant_encode.h"

namespace quern {

namespace {
constexpr int64_t kPieceValues = 4 << 20;   // of one write: 16 MB of float32
constexpr int64_t kTaskValues = 128 << 10;  // of one thread at a time
}  // namespace

int64_t ExportTensor::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::vector<ExportTensor> split_rows(const ExportTensor& tensor, int64_t parts) {
  QUERN_CHECK((tensor.rows || tensor.encoded) && tensor.shape.size() == 2 && tensor.name.ends_with(".weight"),
              "split_rows of " + tensor.name);
  const std::string stem = tensor.name.substr(0, tensor.name.size() - std::string_view(".weight").size());
  const int64_t n = tensor.n_rows(), per_part = (n + parts - 1) / parts;
  std::vector<ExportTensor> out;
  for (int64_t first = 0; first < n; first += per_part) {
    ExportTensor t = tensor;
    t.name = stem + ".shard_" + std::to_string(out.size()) + ".weight";
    t.shape[0] = std::min(per_part, n - first);
    if (tensor.rows)
      t.rows = [rows = tensor.rows, first](int64_t begin, int64_t end, float* to) {
        rows(first + begin, first + end, to);
      };
    if (tensor.encoded)
      t.encoded = [encoded = tensor.encoded, first](int64_t begin, int64_t end, std::byte* to) {
        encoded(first + begin, first + end, to);
      };
    out.push_back(std::move(t));
  }
  return out;
}

void export_tensors(const std::vector<ExportTensor>& tensors, ThreadPool& pool,
                    const std::function<ByteSink(size_t)>& begin, const Progress& progress) {
  int64_t total = 0, done = 0;
  for (const ExportTensor& t : tensors) total += t.bytes();
  std::vector<std::byte> piece;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ExportTensor& t = tensors[i];
    const ByteSink sink = begin(i);
    const auto pass_on = [&](std::span<const std::byte> bytes) {
      sink(bytes);
      done += static_cast<int64_t>(bytes.size());
      if (progress) progress(done, total);
    };
    if (!t.rows && !t.encoded) {
      const std::span<const std::byte> bytes = t.owned.empty() ? t.raw : std::span<const std::byte>(t.owned);
      QUERN_CHECK(static_cast<int64_t>(bytes.size()) == t.bytes(),
                  "export of " + t.name + ": wrong number of bytes");
      for (size_t at = 0; at < bytes.size(); at += size_t{64} << 20)
        pass_on(bytes.subspan(at, std::min(bytes.size() - at, size_t{64} << 20)));
      continue;
    }
    const int64_t cols = t.cols(), row_size = row_bytes(t.dtype, cols), n_rows = t.n_rows();
    const int64_t per_piece = std::max<int64_t>(1, kPieceValues / cols);
    const int64_t per_task = std::max<int64_t>(1, kTaskValues / cols);
    for (int64_t first = 0; first < n_rows; first += per_piece) {
      const int64_t n = std::min(per_piece, n_rows - first);
      piece.resize(static_cast<size_t>(n * row_size));
      pool.parallel_for(n, per_task, [&](int64_t from, int64_t to) {
        if (t.encoded) return t.encoded(first + from, first + to, piece.data() + from * row_size);
        std::vector<float> values(static_cast<size_t>((to - from) * cols));
        t.rows(first + from, first + to, values.data());
        for (int64_t r = from; r < to; ++r)
          encode_row(t.dtype, values.data() + (r - from) * cols, cols, piece.data() + r * row_size);
      });
      pass_on(piece);
    }
  }
}

}  // namespace quern
