// The product of the decode path: 16 rows of a weight by columns of x in eights, on m16n8k16 tiles.
//
// The weight is the tile's A and x its B, so a row of x is a column of the tile: nothing another row holds can reach it,
// and one row costs no more than eight. A warp walks its part of K in ascending steps; the caller sums warps and blocks
// in a fixed order. The order is thus a function of (n, k) and the format alone.
//
// A step is 64 bytes of each of the 16 rows: lane (g, t) = (l / 4, l % 4) takes bytes [16t, 16t + 16) of rows g and
// g + 8. Weights come to a ring of stages in the warp's own shared memory, up to six steps a stage, a row of it by one
// copy of the bulk engine (Hopper; elsewhere by cp.async): loads by lanes, 64 bytes of each of eight rows at a time, are
// held up by the L1 at half of the memory's rate. No warp waits for another, the ring costs no registers, and loops stay
// rolled: code that runs once a block would be paid for in instruction fetches. Rings are filled before a kernel waits
// for the one before it.
//
// x lies in shared memory as BF16 or F16, eight values of K to 16 bytes, in the order in which the codes come apart.
// GGUF blocks, and 4-bit rows that do not begin on 16 bytes, are read without the ring.
#pragma once

#include <cuda_fp16.h>

#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/product.cuh"

namespace quern::cuda {

inline int multiprocessors(Stream& s) {
  static int count[64] = {};
  int& n = count[s.device().index & 63];
  if (n == 0) {
    QUERN_CUDA_CHECK(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, s.device().index));
  }
  return n;
}

// ---- shapes ----

// Whether the ring takes this weight: 16 bytes of a row at a time, aligned, with whole scales.
__host__ __device__ inline bool streams(const WeightView& w) {
  if (w.kind != WeightKind::F4) return w.wide && w.kind != WeightKind::Blocks;
  return w.k % 32 == 0 && (reinterpret_cast<uintptr_t>(w.data) | w.row_bytes) % 16 == 0;
}
// Values of K in a step.
__host__ __device__ inline int step_values(const WeightView& w) {
  if (!streams(w)) return 64;
  switch (w.kind) {
    case WeightKind::F4:
      return 128;
    case WeightKind::F8Block:
    case WeightKind::F8Row:
      return 64;
    case WeightKind::F32:
      return 16;
    default:
      return 32;
  }
}
__host__ __device__ inline int stream_steps(const WeightView& w) {
  const int values = step_values(w);
  return (w.k + values - 1) / values;
}

// Which formats a kernel is made for. Code that reads GGUF blocks is large and takes many registers, so kernels that need
// none have none of it. kOnly: every weight is FP8 with scales of blocks or BF16, whole in steps, and rows of x are wide
// (only_known). Such a kernel has a body for each of the two, and a block takes one of them: most of what it does beside the
// products is choices that a body made for one kind does not have, and what runs once has also to be fetched.
enum : unsigned {
  kWalkF4 = 1,
  kWalkF8 = 2,
  kWalk16 = 4,
  kWalkF32 = 8,
  kWalkStreams = 15,
  kWalkAny = 31,
  kOnly = 32,
  kOnlyF8Blocks = kOnly | kWalkF8,
  kOnlyBF16 = kOnly | kWalk16,
};
inline bool only_known(const WeightView& w) {
  return (w.kind == WeightKind::F8Block || w.kind == WeightKind::BF16) && streams(w) && w.k % 64 == 0;
}
template <unsigned kFormats>
__device__ __forceinline__ WeightView known(WeightView w) {
  if constexpr (kFormats & kOnly) {
    w.kind = kFormats & kWalkF8 ? WeightKind::F8Block : WeightKind::BF16;
    w.wide = true;
    __builtin_assume((w.k & 63) == 0);
  }
  return w;
}
template <unsigned kFormats, typename Rows>
__device__ __forceinline__ Rows known_rows(Rows rows) {
  if constexpr (kFormats & kOnly) rows.wide = true;
  return rows;
}
// body.operator()<formats>() of a weight of that kind.
template <unsigned kFormats, typename Body>
__device__ __forceinline__ void with_known(WeightKind kind, Body&& body) {
  if constexpr (kFormats == kOnly) {
    if (kind == WeightKind::F8Block) {
      body.template operator()<kOnlyF8Blocks>();
    } else {
      body.template operator()<kOnlyBF16>();
    }
  } else {
    body.template operator()<kFormats>();
  }
}

// The type of x, and the order of eight values in 16 bytes. E4M3, and E2M1 times E4M3, are exact in F16 and made by the
// conversion unit, so x meets them in F16; it holds three bits more of x than BF16 and all that is not beyond its range.
enum class XOrder : int32_t {
  Brain,    // BF16: (0,1) (2,3) (4,5) (6,7)
  Half,     // F16, the same
  Nibbles,  // F16: (0,2) (4,6) (1,3) (5,7)
};
__host__ __device__ inline XOrder x_order(WeightKind kind) {  // of weights that stream
  if (kind == WeightKind::F4) return XOrder::Nibbles;
  return kind == WeightKind::F8Block || kind == WeightKind::F8Row || kind == WeightKind::F16 ? XOrder::Half
                                                                                             : XOrder::Brain;
}
__host__ __device__ inline XOrder x_order(const WeightView& w) {
  return streams(w) ? x_order(w.kind) : XOrder::Brain;
}
// Bytes from one column to the next: so far beyond a multiple of 128 that the lanes of a load meet no bank twice.
__host__ __device__ inline int x_stride(const WeightView& w, int n_steps) {
  const int beyond = !streams(w)                                                    ? 16
                     : w.kind == WeightKind::F4 || w.kind == WeightKind::F32        ? 32
                     : w.kind == WeightKind::F8Block || w.kind == WeightKind::F8Row ? 16
                                                                                    : 64;
  return (n_steps * step_values(w) * 2 + 127) / 128 * 128 + beyond;
}

// ---- x ----

// Two F16, the first in the low half; what lies beyond their range becomes the largest.
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("{\n\t.reg .b32 v;\n\tcvt.rn.f16x2.f32 v, %1, %2;\n\tmin.NaN.f16x2 v, v, %3;\n\tmax.NaN.f16x2 %0, v, "
      "%4;\n\t}"
      : "=r"(r)
      : "f"(hi), "f"(lo), "r"(0x7bff7bffu), "r"(0xfbfffbffu));
  return r;
}

// Columns of x in shared memory, K from k0 on; k0 and the width are whole steps.
struct XTile {
  uint8_t* x = nullptr;
  int32_t stride = 0, n_columns = 0, k0 = 0, width = 0;
  XOrder order = XOrder::Brain;

  __device__ __forceinline__ float rounded(float v) const {
    return order == XOrder::Brain ? bf16_low(pack_bf16(v, 0.0f)) : __half2float(__float2half_rn(v));
  }
  // Where value k of a column lies in it, in values, and what is put there: `put` for one value.
  __device__ __forceinline__ static int place(XOrder order, int k) {
    if (order != XOrder::Nibbles) return k;
    const int chunk = k / 8, e = k % 8;
    return (chunk ^ (chunk >> 3 & 1)) * 8 + e / 2 + e % 2 * 4;
  }
  __device__ __forceinline__ static uint16_t packed(XOrder order, float v) {
    return static_cast<uint16_t>(order == XOrder::Brain ? pack_bf16(v, 0.0f) : pack_f16(v, 0.0f));
  }
  // Values 8·chunk … 8·chunk + 7 from k0 on.
  __device__ __forceinline__ void put(int column, int chunk, const float (&v)[8]) const {
    uint4 u;
    if (order == XOrder::Brain) {
      u = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]), pack_bf16(v[4], v[5]),
                     pack_bf16(v[6], v[7]));
    } else if (order == XOrder::Half) {
      u = make_uint4(pack_f16(v[0], v[1]), pack_f16(v[2], v[3]), pack_f16(v[4], v[5]), pack_f16(v[6], v[7]));
    } else {
      u = make_uint4(pack_f16(v[0], v[2]), pack_f16(v[4], v[6]), pack_f16(v[1], v[3]), pack_f16(v[5], v[7]));
      chunk ^= chunk >> 3 & 1;  // lanes t and t + 2 read 64 bytes apart, in opposite halves
    }
    *reinterpret_cast<uint4*>(x + column * stride + 16 * chunk) = u;
  }
};
__device__ __forceinline__ XTile x_tile(uint8_t* memory, const WeightView& w, int n_columns, int begin,
                                        int end) {
  const int values = step_values(w);
  return {memory, x_stride(w, end - begin), n_columns, begin * values, (end - begin) * values, x_order(w)};
}

// Column c is row first + c of `rows`, or the one that list[first + c] names. Threads [first_thread, + kThreads).
template <int kThreads>
__device__ __forceinline__ void stage_rows(const XTile& tile, const RowsF32& rows, const int32_t* list,
                                           int first, int thread) {
  constexpr int kAtOnce = 3;
  const int chunks = tile.width / 8, all = chunks * tile.n_columns;
#pragma unroll 1
  for (int i0 = thread; i0 < all; i0 += kThreads * kAtOnce) {
    float v[kAtOnce][8];
#pragma unroll
    for (int q = 0; q < kAtOnce; ++q) {
      const int i = min(i0 + q * kThreads, all - 1), c = tile.n_columns == 1 ? 0 : i / chunks;
      const float* row = rows.row(list ? list[first + c] : first + c);
      load_eight(v[q], row, tile.k0 + 8 * (i - c * chunks), rows.k, rows.wide);
    }
#pragma unroll
    for (int q = 0; q < kAtOnce; ++q) {
      const int i = i0 + q * kThreads, c = tile.n_columns == 1 ? 0 : i / chunks;
      if (i < all) tile.put(c, i - c * chunks, v[q]);
    }
  }
}

// ---- weights ----

// One of two weights, field by field: to choose between structs puts both into local memory.
__device__ __forceinline__ WeightView choose(bool first, const WeightView& a, const WeightView& b) {
  WeightView w;
  w.data = first ? a.data : b.data;
  w.scale = first ? a.scale : b.scale;
  w.global_scales = nullptr;
  w.row_bytes = first ? a.row_bytes : b.row_bytes;
  w.scale_stride = first ? a.scale_stride : b.scale_stride;
  w.n = first ? a.n : b.n;
  w.k = first ? a.k : b.k;
  w.global_scale = first ? a.global_scale : b.global_scale;
  w.kind = first ? a.kind : b.kind;
  w.dtype = first ? a.dtype : b.dtype;
  w.scale_is_bf16 = first ? a.scale_is_bf16 : b.scale_is_bf16;
  w.wide = first ? a.wide : b.wide;
  return w;
}

__device__ __forceinline__ uint4 shared16(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 shared8(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ uint32_t shared4(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
  return v;
}

// How a launch's rings are laid out.
struct RingPlan {
  int32_t steps = 1, depth = 1, pitch = 64, scales_at = 0, stage_bytes = 0, bytes = 0;
  int32_t scale_pitch = 0;  // of a 4-bit row
  bool whole_rows = false;  // one stage holds rows as they lie in memory: eight of them are one copy
};
inline constexpr int kMaxStageSteps = 6, kMaxStages = 4;
// Of a 4-bit row and stage: 6 steps of eight scales, not always on four bytes, and how far they are off.
inline constexpr int kScaleWords = 15, kSkewWord = 14;
// For warps that walk `tiles` tiles one after the other, at most `n_steps` of each, `depth` stages ahead of at most `most`
// steps; `f4`: some weights may be of four bits.
inline RingPlan ring_plan(int n_steps, int tiles, int depth, bool f4, int most = kMaxStageSteps) {
  RingPlan p;
  const int stages = std::max(1, ceil_div(n_steps, most));
  p.steps = std::max(1, ceil_div(n_steps, stages));
  p.depth = std::min({depth, stages * tiles, kMaxStages});
  p.pitch = p.steps * 64 + (p.steps % 2 == 0 ? 64 : 0);  // rows g and g + 1 in different halves of the banks
  p.scales_at = 16 * p.pitch;
  p.scale_pitch = kScaleWords * 4;
  p.stage_bytes = p.scales_at + (f4 ? 8 * 128 : 2 * 128);
  p.bytes = p.depth * p.stage_bytes + 128;
  return p;
}
// The one of the longest stages with which a block of so many warps has room for `beside` bytes.
inline RingPlan ring_plan_beside(Stream& s, int warps, int beside, int n_steps, int tiles, int depth, bool f4,
                                 int most = kMaxStageSteps) {
  RingPlan p = ring_plan(n_steps, tiles, depth, f4, most);
  while (most > 1 && warps * p.bytes + beside > shared_limit(s))
    p = ring_plan(n_steps, tiles, depth, f4, --most);
  return p;
}
inline bool is_f4(const WeightView& w) { return w.kind == WeightKind::F4; }
// One of two, field by field, as of weights.
__device__ __forceinline__ RingPlan choose(bool first, const RingPlan& a, const RingPlan& b) {
  RingPlan p;
  p.steps = first ? a.steps : b.steps;
  p.depth = first ? a.depth : b.depth;
  p.pitch = first ? a.pitch : b.pitch;
  p.scales_at = first ? a.scales_at : b.scales_at;
  p.stage_bytes = first ? a.stage_bytes : b.stage_bytes;
  p.bytes = first ? a.bytes : b.bytes;
  p.scale_pitch = first ? a.scale_pitch : b.scale_pitch;
  p.whole_rows = first ? a.whole_rows : b.whole_rows;
  return p;
}
// Whether rows lie one behind the other, of whole steps and with their scales likewise, so that eight of them are one copy.
// Row numbers are multiples of 8.
inline bool packed_rows(const WeightView& w) {
  const bool packed_scales =
      w.scale_stride == w.k / 16 && w.scale_stride % 4 == 0 && reinterpret_cast<uintptr_t>(w.scale) % 16 == 0;
  return streams(w) && w.n % 8 == 0 && w.row_bytes == int64_t{stream_steps(w)} * 64 &&
         (!is_f4(w) || packed_scales);
}
// For a warp that takes one tile, of rows that are short enough to be one stage: `rows` of them, 8 or 16.
inline bool takes_whole_rows(const WeightView& w) { return packed_rows(w) && w.row_bytes <= 1024; }
inline RingPlan whole_rows_plan(const WeightView& w, int rows) {
  RingPlan p;
  p.steps = stream_steps(w);
  p.pitch = static_cast<int32_t>(w.row_bytes);
  p.scales_at = rows * p.pitch;
  p.scale_pitch = w.k / 16;
  p.stage_bytes = p.scales_at + (is_f4(w) ? (rows * p.scale_pitch + 127) / 128 * 128 : 2 * 128);
  p.bytes = p.stage_bytes + 128;
  p.whole_rows = true;
  return p;
}

__device__ __forceinline__ void put_word(uint32_t to, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}
__device__ __forceinline__ void copy_word(uint32_t to, const uint8_t* from, uint64_t policy) {
#ifdef QUERN_SM90
  asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#endif
}
__device__ __forceinline__ void bulk_copy(uint32_t to, const uint8_t* from, int bytes, uint32_t bar,
                                          uint64_t policy) {
#ifdef QUERN_SM90
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], %4;" ::"r"(to),
      "l"(from), "r"(bytes), "r"(bar), "l"(policy)
      : "memory");
#endif
}
// The word of a scale of 128 columns to `to`, how to make a float of it to `how`: it is one, or its lower or upper half is.
__device__ __forceinline__ void copy_scale(uint32_t to, uint32_t how, const uint8_t* from, bool bf16,
                                           uint64_t policy) {
  const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2u;
  copy_word(to, from - skew, policy);
  put_word(how, !bf16 ? 0x3210u : skew == 0 ? 0x1044u : 0x3244u);
}

// A warp's ring. `aim` says what goes in next, `begin` what is taken out next; the tiles of the two may differ.
class WeightRing {
 public:
  __device__ __forceinline__ WeightRing(const RingPlan& plan, uint8_t* memory, const WeightView& w)
      : plan_(plan), base_(shared_address(memory)) {
    if (row_bytes_of(w) % 64 !=
        0) {  // what a row's last step does not fill is multiplied by zeros: no NaN may lie there
      for (int i = lane() * 16; i < plan_.bytes; i += 512)
        *reinterpret_cast<uint4*>(memory + i) = make_uint4(0, 0, 0, 0);
      fence_async_proxy();
      __syncwarp();
    }
    if (lane() == 0) {
#pragma unroll 1
      for (int i = 0; i < plan_.depth; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier(i)), "r"(kArrivals) : "memory");
      }
      fence_async_proxy();
    }
    __syncwarp();
  }

  // Steps [begin, end): the upper eight rows of a tile from row0 of w0 on, the lower eight from row1 of w1 on, two weights
  // of one shape and format.
  __device__ __forceinline__ void aim(const WeightView& w0, int row0, const WeightView& w1, int row1,
                                      int begin, int end, bool lower = true) {
    rows_ = lower ? 16 : 8;  // without the lower ones their results are anything
    // By value: a choice between the two views would put both into local memory.
    const int r = lane() % 16;
    w_ = (r < 8 ? w0.data : w1.data) + min(r < 8 ? row0 + r : row1 + r - 8, w0.n - 1) * w0.row_bytes +
         begin * 64;
    f4_ = w0.kind == WeightKind::F4;
    bf16_scales_ = w0.scale_is_bf16;
    scaled_ = f4_ || w0.kind == WeightKind::F8Block;
    if (scaled_) {
      // Two lanes share a 4-bit row's scales; sixteen the scales of eight rows that lie in one block of 128.
      const int row = f4_ ? lane() / 2 : lane() / 16 * 8;
      const int at = min(row < 8 ? row0 + row : row1 + row - 8, w0.n - 1);
      scales_ = static_cast<const uint8_t*>(row < 8 ? w0.scale : w1.scale) +
                (f4_ ? at * w0.scale_stride : (at >> 7) * w0.scale_stride * (bf16_scales_ ? 2 : 4));
    }
    left_ = row_bytes_of(w0) - begin * 64;
    step_ = begin;
    end_ = streams(w0) ? end : begin;
  }
  __device__ __forceinline__ bool empty() const { return step_ >= end_; }
  // The next stage, if there is something for it and it is free: the caller puts `depth` stages at first and one after
  // each that was taken out.
  __device__ __forceinline__ void put() {
    if (step_ >= end_) return;
    const int n = min(plan_.steps, end_ - step_), bytes = min(n * 64, left_);
    const uint32_t stage = base_ + 128 + put_ * plan_.stage_bytes, bar = barrier(put_);
    const uint64_t policy = evict_first();
    const bool whole_f4 = plan_.whole_rows && f4_;
#ifdef QUERN_SM90
    if (lane() == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                   "r"(rows_ * (bytes + (whole_f4 ? plan_.scale_pitch : 0)))
                   : "memory");
    }
    if (lane() < rows_ && (!plan_.whole_rows || lane() % 8 == 0)) {
      bulk_copy(stage + lane() * plan_.pitch, w_, plan_.whole_rows ? 8 * bytes : bytes, bar, policy);
    }
#else
    for (int at = lane() / 16 * 16; at < bytes; at += 32) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(stage + lane() % 16 * plan_.pitch + at),
                   "l"(w_ + at)
                   : "memory");
    }
#endif
    if (scaled_) {
      const uint32_t to = stage + plan_.scales_at;
      if (whole_f4) {
#ifdef QUERN_SM90
        if (lane() % 16 == 0 && lane() < 2 * rows_)
          bulk_copy(to + lane() / 2 * plan_.scale_pitch, scales_, 8 * plan_.scale_pitch, bar, policy);
#else
        for (int i = lane() % 2 * 4; i < plan_.scale_pitch; i += 8)
          copy_word(to + lane() / 2 * plan_.scale_pitch + i, scales_ + i, policy);
#endif
      } else if (f4_) {
        const uint8_t* from = scales_ + step_ * 8;
        const auto skew = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(from)) & 2u;
        const int words = (min(n * 8, left_ / 8) + static_cast<int>(skew) + 3) / 4;
        const uint32_t row = to + lane() / 2 * (kScaleWords * 4);
        for (int i = lane() % 2; i < words; i += 2) copy_word(row + 4 * i, from - skew + 4 * i, policy);
        if (lane() % 2 == 0) put_word(row + 4 * kSkewWord, skew);
      } else {
        const int first = step_ >> 1, i = lane() % 16;
        if (first + i <= (step_ + n - 1) >> 1) {
          copy_scale(to + lane() * 4, to + 128 + lane() * 4, scales_ + (first + i) * (bf16_scales_ ? 2 : 4),
                     bf16_scales_, policy);
        }
      }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
    w_ += n * 64;
    left_ -= n * 64;
    step_ += n;
    if (++put_ == plan_.depth) put_ = 0;
  }

  // A range of `n` steps from `step` on comes out next.
  __device__ __forceinline__ void begin(int step, int n) {
    stage_step_ = step;
    in_stage_ = 0;
    in_range_ = n;
  }
  // Steps that are there, at most n; waits for a stage where the last is used up.
  __device__ __forceinline__ int take(int n) {
    if (in_stage_ == 0) {
      while (!barrier_done(barrier(take_), parity_)) {
      }
      in_stage_ = min(plan_.steps, in_range_);
      in_range_ -= in_stage_;
      at_ = base_ + 128 + take_ * plan_.stage_bytes;
    }
    return min(n, in_stage_);
  }
  // n steps of those are used; true where the stage is, and may be put again.
  __device__ __forceinline__ bool used(int n) {
    at_ += n * 64;
    in_stage_ -= n;
    if (in_stage_ > 0) return false;
    stage_step_ += plan_.steps;
    if (++take_ == plan_.depth) {
      take_ = 0;
      parity_ ^= 1;
    }
    __syncwarp();
    return true;
  }
  // Rows 0 and 8 at the next step, and the stage's scales.
  __device__ __forceinline__ uint32_t upper() const { return at_; }
  __device__ __forceinline__ uint32_t lower() const { return at_ + 8 * plan_.pitch; }
  __device__ __forceinline__ int pitch() const { return plan_.pitch; }
  __device__ __forceinline__ uint32_t scales() const {
    return base_ + 128 + take_ * plan_.stage_bytes + plan_.scales_at;
  }
  // Of blocks of 128: from the upper rows' scales to the lower ones', and to what says how they are read.
  __device__ __forceinline__ int lower_scales() const { return 64; }
  // Of 4-bit rows: from one row's scales to the next, and how far into them the first is.
  __device__ __forceinline__ int scale_pitch() const { return plan_.scale_pitch; }
  __device__ __forceinline__ uint32_t skew(uint32_t row_scales) const {
    return plan_.whole_rows ? 0 : shared4(row_scales + 4 * kSkewWord);
  }
  __device__ __forceinline__ int stage_step() const { return stage_step_; }

 private:
#ifdef QUERN_SM90
  static constexpr int kArrivals = 33;  // every lane's scales, and the bulk copies
#else
  static constexpr int kArrivals = 32;
#endif
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x % 32); }
  __device__ __forceinline__ uint32_t barrier(int i) const { return base_ + 8 * i; }
  __device__ __forceinline__ static int row_bytes_of(const WeightView& w) {
    return w.k * 16 / (step_values(w) / 4);
  }

  const RingPlan& plan_;
  const uint8_t *w_ = nullptr, *scales_ = nullptr;
  uint32_t base_, at_ = 0, parity_ = 0;
  int put_ = 0, step_ = 0, end_ = 0, left_ = 0, rows_ = 16;
  int take_ = 0, stage_step_ = 0, in_stage_ = 0, in_range_ = 0;
  bool scaled_ = false, f4_ = false, bf16_scales_ = false;
};

// Tiles of 16 rows with all of K, which the warps of a block walk together, a part of K each: a few large copies, where a
// ring of its own for every warp takes many small ones, of which the engine begins one in some thirteen cycles. Stages are
// put by the whole block, between barriers. Interface as of WeightRing. For Hopper's bulk engine only.
template <int kThreads>
class BlockTiles {
 public:
  static bool takes(Stream& s, const WeightView& w) {
    return is_hopper(s) && packed_rows(w) && w.row_bytes <= 6144;
  }
  // `padded`: a copy a row, so that rows begin in different banks, else one for eight rows where they lie.
  static RingPlan plan_of(const WeightView& w, int depth, bool padded) {
    RingPlan p;
    p.steps = stream_steps(w);
    p.depth = depth;
    p.pitch = static_cast<int32_t>(w.row_bytes) + (padded && w.row_bytes % 128 == 0 ? 64 : 0);
    p.whole_rows = p.pitch == w.row_bytes;
    p.scales_at = 16 * p.pitch;
    p.scale_pitch = is_f4(w) ? w.k / 16 : (w.k + 127) / 128 * 4;  // of a row, or of eight
    p.stage_bytes = p.scales_at + (is_f4(w) ? 16 : 4) * p.scale_pitch;
    p.stage_bytes = (p.stage_bytes + 127) / 128 * 128;
    p.bytes = p.depth * p.stage_bytes + 128;
    return p;
  }

  // The caller synchronises the block before the first `take`.
  __device__ __forceinline__ BlockTiles(const RingPlan& plan, uint8_t* memory, const WeightView& w)
      : plan_(plan), base_(shared_address(memory)), kind_(w.kind) {
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int i = 0; i < plan_.depth; ++i) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(base_ + 8 * i),
                     "r"(kind_ == WeightKind::F8Block ? kThreads + 1 : 1)
                     : "memory");
      }
      fence_async_proxy();
    }
  }
  __device__ __forceinline__ void aim(const WeightView& w0, int row0, const WeightView& w1, int row1, int,
                                      int) {
    row0 = min(row0, w0.n - 8);
    row1 = min(row1, w1.n - 8);
    row_bytes_ = static_cast<int>(w0.row_bytes);
    data_[0] = w0.data + row0 * w0.row_bytes;
    data_[1] = w1.data + row1 * w1.row_bytes;
    bf16_scales_ = w0.scale_is_bf16;
    const int64_t at0 = kind_ == WeightKind::F4 ? row0 * w0.scale_stride
                                                : (row0 >> 7) * w0.scale_stride * (bf16_scales_ ? 2 : 4),
                  at1 = kind_ == WeightKind::F4 ? row1 * w1.scale_stride
                                                : (row1 >> 7) * w1.scale_stride * (bf16_scales_ ? 2 : 4);
    scales_[0] = static_cast<const uint8_t*>(w0.scale) + at0;
    scales_[1] = static_cast<const uint8_t*>(w1.scale) + at1;
    empty_ = false;
  }
  __device__ __forceinline__ bool empty() const { return empty_; }
  __device__ __forceinline__ void put() {
    if (empty_) return;
    empty_ = true;
    const uint32_t stage = base_ + 128 + put_ * plan_.stage_bytes, bar = base_ + 8 * put_,
                   scales = stage + plan_.scales_at;
    if (++put_ == plan_.depth) put_ = 0;
    const uint64_t policy = evict_first();
    const int tid = static_cast<int>(threadIdx.x);
    const bool f4 = kind_ == WeightKind::F4;
#ifdef QUERN_SM90
    if (tid == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar),
                   "r"(16 * (row_bytes_ + (f4 ? plan_.scale_pitch : 0)))
                   : "memory");
    }
#endif
    if (tid < 16 && (!plan_.whole_rows || tid % 8 == 0)) {
      bulk_copy(stage + tid * plan_.pitch, (tid < 8 ? data_[0] : data_[1]) + tid % 8 * row_bytes_,
                plan_.whole_rows ? 8 * row_bytes_ : row_bytes_, bar, policy);
    }
    if (f4) {
      if (tid < 16 && tid % 8 == 0) {
        bulk_copy(scales + tid * plan_.scale_pitch, tid < 8 ? scales_[0] : scales_[1], 8 * plan_.scale_pitch,
                  bar, policy);
      }
    } else if (kind_ == WeightKind::F8Block) {
      const int each = plan_.scale_pitch / 4;
#pragma unroll 1
      for (int i = tid; i < 2 * each; i += kThreads) {
        copy_scale(
            scales + 4 * i, scales + 2 * plan_.scale_pitch + 4 * i,
            (i < each ? scales_[0] : scales_[1] - each * (bf16_scales_ ? 2 : 4)) + i * (bf16_scales_ ? 2 : 4),
            bf16_scales_, policy);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
    }
  }

  __device__ __forceinline__ void begin(int step, int) {
    at_ = base_ + 128 + take_ * plan_.stage_bytes + 64 * step;
  }
  __device__ __forceinline__ int take(int n) {
    while (!barrier_done(base_ + 8 * take_, parity_)) {
    }
    return n;
  }
  __device__ __forceinline__ bool used(int n) {
    at_ += 64 * n;
    return false;
  }
  // By every thread, when all are through with the tile.
  __device__ __forceinline__ void release() {
    if (++take_ == plan_.depth) {
      take_ = 0;
      parity_ ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t upper() const { return at_; }
  __device__ __forceinline__ int pitch() const { return plan_.pitch; }
  __device__ __forceinline__ uint32_t scales() const {
    return base_ + 128 + take_ * plan_.stage_bytes + plan_.scales_at;
  }
  __device__ __forceinline__ int lower_scales() const { return plan_.scale_pitch; }
  __device__ __forceinline__ int scale_pitch() const { return plan_.scale_pitch; }
  __device__ __forceinline__ uint32_t skew(uint32_t) const { return 0; }
  __device__ __forceinline__ int stage_step() const { return 0; }

 private:
  const RingPlan& plan_;
  const uint8_t *data_[2] = {}, *scales_[2] = {};
  uint32_t base_, at_ = 0, parity_ = 0;
  WeightKind kind_;
  int put_ = 0, take_ = 0, row_bytes_ = 0;
  bool empty_ = true, bf16_scales_ = false;
};

// ---- codes to F16 ----

__device__ __forceinline__ uint32_t mul_f16x2(uint32_t a, uint32_t b) {
  uint32_t r;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
// Four E4M3 bytes to words (0, 1) and (2, 3), exactly.
__device__ __forceinline__ void e4m3_halves(uint32_t bytes, uint32_t& low, uint32_t& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n\t.reg .b16 l, h;\n\tmov.b32 {l, h}, %2;\n\tcvt.rn.f16x2.e4m3x2 %0, l;\n\tcvt.rn.f16x2.e4m3x2 %1, "
      "h;\n\t}"
      : "=r"(low), "=r"(high)
      : "r"(bytes));
#else
  // Exponent and mantissa moved to an F16's place give value · 2^-8, subnormals included.
  const uint32_t a = __byte_perm(bytes, 0, 0x1404), b = __byte_perm(bytes, 0, 0x3424);  // byte << 8 in halves
  low = mul_f16x2((a & 0x80008000u) | (a >> 1 & 0x3f803f80u), 0x5c005c00u);             // 2^8
  high = mul_f16x2((b & 0x80008000u) | (b >> 1 & 0x3f803f80u), 0x5c005c00u);
#endif
}
// Eight E2M1 codes to words (0, 2) (4, 6) (1, 3) (5, 7), times `factor` · 2^-6: the codes are moved to E4M3 first.
__device__ __forceinline__ void e2m1_halves(uint32_t codes, uint32_t factor, uint32_t* w) {
  const uint32_t even = (codes << 4 & 0x80808080u) | (codes << 2 & 0x1c1c1c1cu);
  const uint32_t odd = (codes & 0x80808080u) | (codes >> 2 & 0x1c1c1c1cu);
  e4m3_halves(even, w[0], w[1]);
  e4m3_halves(odd, w[2], w[3]);
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = mul_f16x2(w[i], factor);
}
inline constexpr float kE2m1Rest = 64.0f;  // what e2m1_halves leaves out
// Two E4M3 scales, the upper or lower two bytes of a word, each in both halves of a word.
__device__ __forceinline__ void f4_factors(uint32_t word, bool upper, uint32_t (&factor)[2]) {
  uint32_t low, high;
  e4m3_halves(upper ? word >> 16 : word, low, high);
  factor[0] = __byte_perm(low, 0, 0x1010);
  factor[1] = __byte_perm(low, 0, 0x3232);
}

// ---- the walk ----

// acc[j] += the tile's rows over `n` steps from `step` on, which come out of the ring next, by columns 8j … 8j + 7. `x` is
// the lane's place in its first column at this step, columns eight further are `eight` bytes on; only tiles j < n_tiles
// are there. `put` is called for each stage that is used up. The factor of whole rows is the caller's (finish).
// kAhead: FP8 weights of the next step are loaded while a step is multiplied, where few warps hide that.
template <int kTiles, unsigned kFormats, bool kAhead = false, typename Ring, typename Put>
__device__ __forceinline__ void walk(float (&acc)[kTiles][4], const WeightView& w0, int row0,
                                     const WeightView& w1, int row1, int step, int n, Ring& ring, uint32_t x,
                                     int eight, int n_tiles, Put&& put) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (kFormats == kWalkAny && !streams(w0)) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
      const int k = (step + i) * 64 + 16 * t;
      uint32_t a[2][8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const WeightView& w = h == 0 ? w0 : w1;
        const int row = (h == 0 ? row0 : row1) + g;
        uint32_t words[8];
        if (w.kind == WeightKind::F4) {
          RunF4::Raw raw;
          RunF4::load(raw, w, row, k);
          RunF4::decode_ordered(raw, w, row, k, words);
        } else {
          RunBlocks::Raw raw;
          RunBlocks::load(raw, w, row, k);
          RunBlocks::decode(raw, words);
        }
#pragma unroll
        for (int q = 0; q < 8; ++q) a[h][q] = words[q];
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        if (kTiles > 1 && j >= n_tiles) break;
        const uint4 b0 = shared16(x + j * eight), b1 = shared16(x + j * eight + 16);
        mma_bf16(acc[j], a[0][0], a[1][0], a[0][1], a[1][1], b0.x, b0.y);
        mma_bf16(acc[j], a[0][2], a[1][2], a[0][3], a[1][3], b0.z, b0.w);
        mma_bf16(acc[j], a[0][4], a[1][4], a[0][5], a[1][5], b1.x, b1.y);
        mma_bf16(acc[j], a[0][6], a[1][6], a[0][7], a[1][7], b1.z, b1.w);
      }
      x += 128;
    }
    return;
  }
#pragma unroll 1
  while (n > 0) {
    const int m = ring.take(n);
    uint32_t from0 = ring.upper() + g * ring.pitch() + 16 * t, from1 = from0 + 8 * ring.pitch();
    const uint32_t from_end = from0 + 64 * m;
    const WeightKind kind = w0.kind;
    if ((kFormats & kWalkF4) && kind == WeightKind::F4) {
      // Bytes 2t of the eight of a step.
      const uint32_t row0_scales = ring.scales() + g * ring.scale_pitch(),
                     row1_scales = row0_scales + 8 * ring.scale_pitch();
      const uint32_t byte0 = ring.skew(row0_scales) + 2 * t, byte1 = ring.skew(row1_scales) + 2 * t;
      const uint32_t skip = 8 * (step - ring.stage_step());
      uint32_t scale0 = row0_scales + skip + (byte0 & ~3u), scale1 = row1_scales + skip + (byte1 & ~3u);
      const uint32_t swap = 16 * (t / 2);
#pragma unroll 1
      for (; from0 != from_end; from0 += 64, from1 += 64) {
        const uint4 u0 = shared16(from0), u1 = shared16(from1);
        uint32_t f0[2], f1[2];
        f4_factors(shared4(scale0), byte0 & 2u, f0);
        f4_factors(shared4(scale1), byte1 & 2u, f1);
        scale0 += 8;
        scale1 += 8;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t a0[8], a1[8];
          e2m1_halves(half == 0 ? u0.x : u0.z, f0[half], a0);
          e2m1_halves(half == 0 ? u0.y : u0.w, f0[half], a0 + 4);
          e2m1_halves(half == 0 ? u1.x : u1.z, f1[half], a1);
          e2m1_halves(half == 0 ? u1.y : u1.w, f1[half], a1 + 4);
#pragma unroll
          for (int j = 0; j < kTiles; ++j) {
            if (kTiles > 1 && j >= n_tiles) break;
            const uint32_t from = x + j * eight + 32 * half;
            const uint4 b0 = shared16(from + swap), b1 = shared16(from + (swap ^ 16));
            float part[4] = {};
            mma_f16(part, a0[0], a1[0], a0[1], a1[1], b0.x, b0.y);
            mma_f16(part, a0[2], a1[2], a0[3], a1[3], b0.z, b0.w);
            mma_f16(part, a0[4], a1[4], a0[5], a1[5], b1.x, b1.y);
            mma_f16(part, a0[6], a1[6], a0[7], a1[7], b1.z, b1.w);
#pragma unroll
            for (int q = 0; q < 4; ++q) acc[j][q] += part[q];
          }
        }
        x += 256;
      }
    } else if ((kFormats & kWalkF8) && (kind == WeightKind::F8Block || kind == WeightKind::F8Row)) {
      const bool blocks = kind == WeightKind::F8Block;
      // The place of the stage's first scale, two steps of it.
      const uint32_t scales = ring.scales() - 4 * (ring.stage_step() >> 1);
      const int lower = ring.lower_scales();
      struct Step {
        uint4 u0, u1;
        float s0 = 1, s1 = 1;
      };
      const auto load = [&](Step& w, int i) {
        w.u0 = shared16(from0 + 64 * i);
        w.u1 = shared16(from1 + 64 * i);
        if (blocks) {
          const uint32_t from = scales + 4 * ((step + i) >> 1);
          const uint32_t how0 = shared4(from + 2 * lower), how1 = shared4(from + 3 * lower);
          w.s0 = __uint_as_float(__byte_perm(shared4(from), 0, how0));
          w.s1 = __uint_as_float(__byte_perm(shared4(from + lower), 0, how1));
        }
      };
      const auto multiply = [&](const Step& w) {
        uint32_t a0[8], a1[8];
        e4m3_halves(w.u0.x, a0[0], a0[1]);
        e4m3_halves(w.u1.x, a1[0], a1[1]);
        e4m3_halves(w.u0.y, a0[2], a0[3]);
        e4m3_halves(w.u1.y, a1[2], a1[3]);
        e4m3_halves(w.u0.z, a0[4], a0[5]);
        e4m3_halves(w.u1.z, a1[4], a1[5]);
        e4m3_halves(w.u0.w, a0[6], a0[7]);
        e4m3_halves(w.u1.w, a1[6], a1[7]);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          if (kTiles > 1 && j >= n_tiles) break;
          const uint4 b0 = shared16(x + j * eight), b1 = shared16(x + j * eight + 16);
          float part[2][4] = {};
          mma_f16(part[0], a0[0], a1[0], a0[1], a1[1], b0.x, b0.y);
          mma_f16(part[1], a0[2], a1[2], a0[3], a1[3], b0.z, b0.w);
          mma_f16(part[0], a0[4], a1[4], a0[5], a1[5], b1.x, b1.y);
          mma_f16(part[1], a0[6], a1[6], a0[7], a1[7], b1.z, b1.w);
#pragma unroll
          for (int q = 0; q < 4; ++q)
            acc[j][q] = fmaf(q < 2 ? w.s0 : w.s1, part[0][q] + part[1][q], acc[j][q]);
        }
        x += 128;
      };
      if constexpr (kAhead) {
        Step now, next;
        load(now, 0);
#pragma unroll 2
        for (int i = 0; i < m; ++i) {
          load(next, min(i + 1, m - 1));
          multiply(now);
          now = next;
        }
      } else {
#pragma unroll 2
        for (int i = 0; i < m; ++i) {
          Step now;
          load(now, i);
          multiply(now);
        }
      }
    } else if ((kFormats & kWalkF32) && kind == WeightKind::F32) {
#pragma unroll 1
      for (; from0 != from_end; from0 += 64, from1 += 64) {
        const uint4 u0 = shared16(from0), u1 = shared16(from1);
        const auto two = [](uint32_t lo, uint32_t hi) {
          return pack_bf16(__uint_as_float(lo), __uint_as_float(hi));
        };
        const uint32_t a0 = two(u0.x, u0.y), a1 = two(u1.x, u1.y), a2 = two(u0.z, u0.w), a3 = two(u1.z, u1.w);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          if (kTiles > 1 && j >= n_tiles) break;
          const uint2 b = shared8(x + j * eight);
          mma_bf16(acc[j], a0, a1, a2, a3, b.x, b.y);
        }
        x += 32;
      }
    } else if (kFormats & kWalk16) {
      const bool halves = kind == WeightKind::F16;
#pragma unroll 1
      for (; from0 != from_end; from0 += 64, from1 += 64) {
        const uint4 u0 = shared16(from0), u1 = shared16(from1);
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          if (kTiles > 1 && j >= n_tiles) break;
          const uint4 b = shared16(x + j * eight);
          if (halves) {
            mma_f16(acc[j], u0.x, u1.x, u0.y, u1.y, b.x, b.y);
            mma_f16(acc[j], u0.z, u1.z, u0.w, u1.w, b.z, b.w);
          } else {
            mma_bf16(acc[j], u0.x, u1.x, u0.y, u1.y, b.x, b.y);
            mma_bf16(acc[j], u0.z, u1.z, u0.w, u1.w, b.z, b.w);
          }
        }
        x += 64;
      }
    }
    step += m;
    n -= m;
    if (ring.used(m)) put();
  }
}

// A lane's place in column `column` of the tile at step `step` (a step of the weight, not of the tile).
__device__ __forceinline__ uint32_t x_place(const XTile& tile, const WeightView& w, int column, int step) {
  const int values = step_values(w), t = threadIdx.x % 4;
  return shared_address(tile.x) + static_cast<uint32_t>(min(column, tile.n_columns - 1) * tile.stride +
                                                        (step * values - tile.k0) * 2 + t * (values / 2));
}

// What a format's codes leave out.
__device__ __forceinline__ float code_rest(const WeightView& w) {
  return w.kind == WeightKind::F4 ? (streams(w) ? kE2m1Rest : kF4Rest) : 1.0f;
}
// The factors of whole rows.
template <int kTiles>
__device__ __forceinline__ void finish(float (&acc)[kTiles][4], const WeightView& w0, int row0,
                                       const WeightView& w1, int row1) {
  const int g = threadIdx.x % 32 / 4;
  const float rest = code_rest(w0);
  const float f0 = w0.row_factor(row0 + g) * rest, f1 = w1.row_factor(row1 + g) * rest;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] *= i < 2 ? f0 : f1;
  }
}

// A lane's accumulators to [8·kTiles columns][16 rows] of shared memory.
template <int kTiles>
__device__ __forceinline__ void store_tile(float* tile, const float (&acc)[kTiles][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    tile[(8 * j + 2 * t) * 16 + g] = acc[j][0];
    tile[(8 * j + 2 * t + 1) * 16 + g] = acc[j][1];
    tile[(8 * j + 2 * t) * 16 + g + 8] = acc[j][2];
    tile[(8 * j + 2 * t + 1) * 16 + g + 8] = acc[j][3];
  }
}

}  // namespace quern::cuda
