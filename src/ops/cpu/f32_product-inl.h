// F32 products of one level (see vector-inl.h): weights widened to f32 panels [columns][outputs] of
// kF32Stretch columns, which serve all rows before the next stretch.

namespace quern::cpu::QUERN_LEVEL {

inline constexpr int kF32Rows = 6, kF32Panels = QUERN_WIDE ? 4 : 2;
inline constexpr int64_t kF32RowBlock = 256;  // rows whose sums wait between stretches
inline constexpr int64_t kF32Turn = 256;      // outputs of such rows

// Widens `columns` of kLanes rows into to[column · stride + lane]. `scale` is F8E4M3's.
template <DType kType>
void widen(const Rows& rows, int64_t columns, const float* scale, float* to, int64_t stride) {
  constexpr int64_t kBytes = kType == DType::F32 ? 4 : kType == DType::F8E4M3 ? 1 : 2, kChunk = 16 / kBytes;
  int64_t column = 0;
  for (; column + kChunk <= columns; column += kChunk) {
    V q[4];
    transpose(rows, column * kBytes, q);
    float* at = to + column * stride;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if constexpr (kType == DType::F32) {
        storef(at + j * stride, as_float(q[j]));
      } else if constexpr (kType == DType::BF16) {
        storef(at + 2 * j * stride, as_float(left32<16>(q[j])));
        storef(at + (2 * j + 1) * stride, as_float(bit_and(q[j], all32(static_cast<int32_t>(0xffff0000u)))));
      } else if constexpr (kType == DType::F16) {
        storef(at + 2 * j * stride, low_half(q[j]));
        storef(at + (2 * j + 1) * stride, low_half(right32<16>(q[j])));
      } else {
        const V magnitude = bit_and(q[j], all8(0x7f));
        if (outside8(magnitude, 0x08, 0x7e)) {  // a zero, a subnormal or a NaN
          for (int b = 0; b < 4; ++b) {
            storef(at + (4 * j + b) * stride, mul(from_e4m3(bit_and(q[j], all32(255))), loadf(scale)));
            q[j] = right32<8>(q[j]);
          }
        } else {
          const VF s = loadf(scale);
          storef(at + 4 * j * stride, mul(normal_e4m3(left32<24>(q[j])), s));
          storef(at + (4 * j + 1) * stride, mul(normal_e4m3(left32<16>(q[j])), s));
          storef(at + (4 * j + 2) * stride, mul(normal_e4m3(left32<8>(q[j])), s));
          storef(at + (4 * j + 3) * stride, mul(normal_e4m3(q[j]), s));
        }
      }
    }
  }
  for (; column < columns; ++column)
    for (int lane = 0; lane < kLanes; ++lane) {
      float v;
      decode_row(kType, reinterpret_cast<const std::byte*>(rows[lane]) + column * kBytes, 1, &v);
      to[column * stride + lane] = kType == DType::F8E4M3 ? v * scale[lane] : v;
    }
}

// Adds the products over one stretch of R rows and kOutputs · kLanes outputs to the sums. The loops over R and
// kOutputs are unrolled, so that no accumulator lies in memory.
template <int kOutputs, int R>
void f32_tile(const float* panel, const float* const* x, int64_t columns, float* sums) {
  VF acc[R][kOutputs];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kOutputs; ++c) acc[r][c] = zerof();
#pragma GCC unroll 2
  for (int64_t i = 0; i < columns; ++i) {
    VF w[kOutputs];
#pragma GCC unroll 4
    for (int c = 0; c < kOutputs; ++c) w[c] = loadf(panel + (i * kOutputs + c) * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const VF xs = allf(x[r][i]);
#pragma GCC unroll 4
      for (int c = 0; c < kOutputs; ++c) acc[r][c] = fma(w[c], xs, acc[r][c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
    for (int c = 0; c < kOutputs; ++c) {
      float* to = sums + (r * kOutputs + c) * kLanes;
      storef(to, add(loadf(to), acc[r][c]));
    }
}

// Weights that will be read soon: `bytes` of each of `rows` rows.
struct Ahead {
  const uint8_t* at;
  int64_t stride, rows, bytes;

  void ask_some(int64_t n) {
    for (n = std::min(n, rows), rows -= n; n > 0; --n, at += stride) ask(at, bytes);
  }
};

template <int kOutputs, int... kRows>
void f32_tiles(std::integer_sequence<int, kRows...>, const float* panel, const float* const* x, int64_t rows,
               int64_t columns, float* sums, Ahead ahead) {
  using Tile = void (*)(const float*, const float* const*, int64_t, float*);
  static constexpr Tile kTiles[] = {f32_tile<kOutputs, kRows + 1>...};
  const int64_t count = (rows + kF32Rows - 1) / kF32Rows;
  const int64_t share = (ahead.rows + count - 1) / count;
  int64_t begin = 0;
  for (int64_t t = 1; t <= count; ++t) {
    const int64_t end = rows * t / count;
    // A part of the weights ahead with each tile: the processor waits where many are asked for at once. The
    // next tile's x too: its rows lie far apart.
    ahead.ask_some(share);
    for (int64_t i = end; i < std::min(end + kF32Rows, rows); ++i)
      ask(reinterpret_cast<const uint8_t*>(x[i]), kF32Stretch * static_cast<int64_t>(sizeof(float)));
    kTiles[end - begin - 1](panel, x + begin, columns, sums + begin * kOutputs * kLanes);
    begin = end;
  }
}

// Outputs [n0, n1) in blocks of kOutputs · kLanes; `weights` are rows of kType, `stride` bytes apart, from
// output `first` on. With many rows, blocks take turns at each stretch: all of x seldom fits the second-level
// cache, its stretch does.
template <DType kType, int kOutputs>
void f32_outputs(const ProductJob& job, const uint8_t* weights, int64_t stride, int64_t first, int64_t n0,
                 int64_t n1) {
  constexpr int64_t kBytes = kType == DType::F32      ? 4
                             : kType == DType::F8E4M3 ? 1
                                                      : 2,
                    kSums = kOutputs * kLanes, kFew = 16;
  const int64_t k = job.w->k();
  alignas(64) float panel[kF32Stretch * kSums];
  alignas(64) float few_sums[kFew * kSums];
  alignas(64) uint8_t copies[kLanes * kF32Stretch * kBytes];
  const float* xs[kF32RowBlock];
  for (int64_t r0 = 0; r0 < job.n_rows; r0 += kF32RowBlock) {
    const int64_t rows = std::min(job.n_rows - r0, kF32RowBlock);
    const int64_t turn = rows <= kF32Rows * 10 ? kSums : kF32Turn;  // outputs that take turns
    float* sums = rows <= kFew ? few_sums : thread_scratch(0, rows * kF32Turn);
    for (int64_t begin = n0; begin < n1; begin += turn) {
      const int64_t end = std::min(begin + turn, n1), blocks = (end - begin + kSums - 1) / kSums;
      std::memset(sums, 0, static_cast<size_t>(rows * blocks * kSums) * sizeof(float));
      // What is asked for lies two panels on: of later blocks, of later stretches, of the outputs after these.
      int64_t next_n = begin, next_k = 0;
      const auto advance = [&] {
        next_n += kSums;
        if (next_n < end) return;
        next_n = begin;
        next_k += kF32Stretch;
      };
      advance();
      advance();
      for (int64_t k0 = 0; k0 < k; k0 += kF32Stretch) {
        const int64_t columns = std::min(k - k0, kF32Stretch);
        for (int64_t i = 0; i < rows; ++i) xs[i] = job.x_row(r0 + i) + k0;
        for (int64_t b = 0; b < blocks; ++b) {
          const int64_t ask_n = next_k < k ? next_n : next_n + turn, ask_k = next_k < k ? next_k : next_k - k;
          Ahead ahead{weights + (ask_n - first) * stride + ask_k * kBytes, stride,
                      std::clamp<int64_t>(n1 - ask_n, 0, kSums), kF32Stretch * kBytes};
          for (int c = 0; c < kOutputs; ++c) {
            const int64_t row = begin + b * kSums + c * kLanes;
            if (rows <= kFew) ahead.ask_some(kLanes);
            const Rows from =
                rows_of(weights, stride, row - first, n1 - first, k0 * kBytes, columns * kBytes, copies);
            alignas(64) float scale[kLanes] = {};
            if constexpr (kType == DType::F8E4M3)
              fp8_scales(*job.w, row, std::min<int64_t>(n1 - row, kLanes), k0, scale);
            widen<kType>(from, columns, scale, panel + c * kLanes, kSums);
          }
          f32_tiles<kOutputs>(std::make_integer_sequence<int, kF32Rows>(), panel, xs, rows, columns,
                              sums + b * rows * kSums, ahead);
          advance();
        }
      }
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t n = begin + b * kSums;
        const auto width = static_cast<size_t>(std::min(end - n, kSums)) * sizeof(float);
        for (int64_t i = 0; i < rows; ++i)
          std::memcpy(job.y_row(r0 + i) + n, sums + (b * rows + i) * kSums, width);
      }
    }
  }
}

template <DType kType>
void f32_typed(const ProductJob& job, const uint8_t* weights, int64_t stride, int64_t first, int64_t n0,
               int64_t n1) {
  // Few rows are bound by memory, which serves 32 rows of weights better than 64 at a time.
  if (job.n_rows <= 8) return f32_outputs<kType, 2>(job, weights, stride, first, n0, n1);
  if (n1 - n0 <= kLanes) return f32_outputs<kType, 1>(job, weights, stride, first, n0, n1);
#if QUERN_WIDE
  if (n1 - n0 <= 2 * kLanes) return f32_outputs<kType, 2>(job, weights, stride, first, n0, n1);
#endif
  f32_outputs<kType, kF32Panels>(job, weights, stride, first, n0, n1);
}

void f32_product(const ProductJob& job, int64_t n0, int64_t n1) {
  const Weight& w = *job.w;
  const auto* weights = reinterpret_cast<const uint8_t*>(w.data.data);
  const int64_t stride = row_bytes(w.data.dtype, w.data.row_stride);
  switch (w.data.dtype) {
    case DType::BF16:
      return f32_typed<DType::BF16>(job, weights, stride, 0, n0, n1);
    case DType::F32:
      return f32_typed<DType::F32>(job, weights, stride, 0, n0, n1);
    case DType::F16:
      return f32_typed<DType::F16>(job, weights, stride, 0, n0, n1);
    case DType::F8E4M3:
      return f32_typed<DType::F8E4M3>(job, weights, stride, 0, n0, n1);
    default:
      break;
  }
  // Any other format by whole rows, decoded once for all of x.
  const int64_t k = w.k();
  for (int64_t n = n0; n < n1; n += kLanes) {
    const int64_t end = std::min(n + kLanes, n1);
    float* decoded = thread_scratch(1, kLanes * k);
    for (int64_t i = n; i < end; ++i) weight_row(w, i, decoded + (i - n) * k);
    f32_typed<DType::F32>(job, reinterpret_cast<const uint8_t*>(decoded), k * 4, n, n, end);
  }
}

}  // namespace quern::cpu::QUERN_LEVEL
