// ple_rows: one warp a head. It hashes its own row's id and reads the row where the table lies: in device memory, or over
// the bus from pinned host memory. A row's bytes are asked for all at once and put into shared memory before they are
// decoded, so that any format costs the bus one round and not one a value. All that is done before the wait: what a
// step's rows are is there by then (copies write it, and the end of a step), and the table is a weight.
//
// ple_add: gate and value per (row, stream); convolution and sum per row; the ring. A decode segment's rows go to the
// ring with the convolution. A prompt's go after it, by a kernel of their own, because a long segment's newest rows take
// the places its first rows still read.
#include <algorithm>

#include "ops/cuda/async.cuh"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/cuda/weight_row.cuh"
#include "ops/ple.h"
#include "ops/scalar.h"

namespace quern::cuda {
namespace {

constexpr int kMaxHeads = 32;
constexpr int kMaxParts = 512;
constexpr int kMaxRowBytes = 1024;

struct TableView {
  int64_t multiplier[3];
  int64_t vocab[kMaxHeads], offset[kMaxHeads];
  const uint8_t* part[kMaxParts];
  float scale[kMaxParts];  // global scale of each part
  int64_t rows_per_part;
  int64_t row_bytes;
  RowScale part_scale;  // of part 0; a scale tensor is supported for a whole table only
  int32_t heads, eos, d_row, n_parts;
};

constexpr int kRowWarps = 4;  // heads of a block

// n bytes into shared memory, by a warp: `to` lies as far from a border of 16 bytes as `from`. Whole groups of 16 bytes go
// as such, what is left before and after them byte by byte, and nothing is stored before all is asked for.
__device__ __forceinline__ void fetch_row(uint8_t* to, const uint8_t* from, int n, int lane) {
  constexpr int kEach = kMaxRowBytes / 16 / 32;
  const int begin = min(static_cast<int>(-reinterpret_cast<uintptr_t>(from) & 15u), n);
  const int groups = (n - begin) / 16, end = begin + 16 * groups;
  uint4 middle[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + 32 * j;
    if (i < groups) middle[j] = reinterpret_cast<const uint4*>(from + begin)[i];
  }
  const int edge = lane < 16 ? lane : end + lane - 16;
  const bool has_edge = lane < 16 ? edge < begin : edge < n;
  uint8_t byte = 0;
  if (has_edge) byte = from[edge];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const int i = lane + 32 * j;
    if (i < groups) reinterpret_cast<uint4*>(to + begin)[i] = middle[j];
  }
  if (has_edge) to[edge] = byte;
}

// Block (t, i): heads kRowWarps·i and on of row t.
template <typename Row>
__global__ void __launch_bounds__(32 * kRowWarps)
    ple_rows_kernel(float* emb, int64_t emb_stride, const int32_t* windows,
                    const __grid_constant__ TableView table) {
  constexpr int kGroup = Row::kGroup, kHeld = kGroup < 16 ? 16 / kGroup : 1;
  __shared__ __align__(16) uint8_t bytes[kRowWarps][kMaxRowBytes + 16];
  pdl_launch();
  const int64_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.y) * kRowWarps + warp;
  if (head >= table.heads) {
    pdl_wait();
    return;
  }
  const int32_t window[3] = {windows[3 * t], windows[3 * t + 1], windows[3 * t + 2]};
  const int64_t row = scalar::ngram_row(window, table.multiplier, table.vocab[head], table.offset[head], head,
                                        table.heads, table.eos);
  const int part =
      table.n_parts == 1 ? 0 : min(static_cast<int>(row / table.rows_per_part), table.n_parts - 1);
  const int64_t r = row - part * table.rows_per_part;
  const uint8_t* from = table.part[part] + r * table.row_bytes;
  uint8_t* to = bytes[warp] + (reinterpret_cast<uintptr_t>(from) & 15u);
  fetch_row(to, from, static_cast<int>(table.row_bytes), lane);
  __syncwarp();
  RowScale scale = table.part_scale;
  scale.global = table.scale[part];
  // The first groups of a lane are decoded before the wait too: their scales may lie beyond the bus.
  const int groups = table.d_row / kGroup;
  float held[kHeld][kGroup];
#pragma unroll
  for (int j = 0; j < kHeld; ++j)
    if (const int g = lane + 32 * j; g < groups) Row::decode(to, r, g, scale, held[j]);
  pdl_wait();
  float* out = emb + t * emb_stride + head * table.d_row;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int g = lane + 32 * j;
    if (g >= groups) break;
#pragma unroll
    for (int i = 0; i < kGroup; ++i) out[g * kGroup + i] = held[j][i];
  }
  for (int g = lane + 32 * kHeld; g < groups; g += 32) {
    float v[kGroup];
    Row::decode(to, r, g, scale, v);
#pragma unroll
    for (int i = 0; i < kGroup; ++i) out[g * kGroup + i] = v[i];
  }
}

constexpr int kGateThreads = 320, kGateWarps = kGateThreads / 32;
constexpr int kGateHeld = 8;  // values a thread keeps in registers: the model's 2560 of a block

// Block (t, s): v[t, s, :] and u[t, s, :]. All four sums come from one pass over what is read, with the scales that they
// are for taken out of them: k · q = r_k r_q Σ key x (1 + norm_key) (1 + norm_query), |v|² = sigmoid(g)² Σ value².
__global__ void __launch_bounds__(kGateThreads)
    ple_gate_kernel(float* v, float* u, const float* x, const float* key, int64_t key_stride,
                    const float* value, int64_t value_stride, const float* norm_key, const float* norm_query,
                    const float* norm_conv, int width, float eps) {
  __shared__ float4 shared[kGateWarps];
  pdl_launch();
  const int64_t t = blockIdx.x, at = static_cast<int64_t>(blockIdx.y) * width;
  const int64_t wide = static_cast<int64_t>(gridDim.y) * width;
  const int tid = static_cast<int>(threadIdx.x);
  x += t * wide + at;
  key += t * key_stride + at;
  value += t * value_stride;
  v += t * wide + at;
  u += t * wide + at;
  norm_key += at;
  norm_query += at;
  norm_conv += at;
  const auto norms_at = [&](int i) { return (1.0f + norm_key[i]) * (1.0f + norm_query[i]); };
  float norms[kGateHeld], norm_of[kGateHeld];
#pragma unroll
  for (int j = 0; j < kGateHeld; ++j) {
    const int i = tid + j * kGateThreads;
    norms[j] = i < width ? norms_at(i) : 0.0f;
    norm_of[j] = i < width ? 1.0f + norm_conv[i] : 0.0f;
  }
  pdl_wait();
  float k[kGateHeld], q[kGateHeld], held[kGateHeld];
#pragma unroll
  for (int j = 0; j < kGateHeld; ++j) {
    const int i = tid + j * kGateThreads;
    k[j] = i < width ? key[i] : 0.0f;
    q[j] = i < width ? x[i] : 0.0f;
    held[j] = i < width ? value[i] : 0.0f;
  }
  float kk = 0, qq = 0, kq = 0, vv = 0;
  const auto add = [&](float k_of, float q_of, float v_of, float norm) {
    kk = fmaf(k_of, k_of, kk);
    qq = fmaf(q_of, q_of, qq);
    kq = fmaf(k_of * q_of, norm, kq);
    vv = fmaf(v_of, v_of, vv);
  };
#pragma unroll
  for (int j = 0; j < kGateHeld; ++j) add(k[j], q[j], held[j], norms[j]);
  for (int i = tid + kGateHeld * kGateThreads; i < width; i += kGateThreads)
    add(key[i], x[i], value[i], norms_at(i));
  kk = warp_sum(kk);
  qq = warp_sum(qq);
  kq = warp_sum(kq);
  vv = warp_sum(vv);
  if (tid % 32 == 0) shared[tid / 32] = {kk, qq, kq, vv};
  __syncthreads();
  kk = qq = kq = vv = 0;
#pragma unroll
  for (int w = 0; w < kGateWarps; ++w) {
    const float4 sum = shared[w];
    kk += sum.x;
    qq += sum.y;
    kq += sum.z;
    vv += sum.w;
  }
  const float d = static_cast<float>(width);
  const float dot = kq * rsqrtf(kk / d + eps) * rsqrtf(qq / d + eps);
  const float g = scalar::sigmoid(scalar::signed_sqrt(dot / sqrtf(d)));
  const float rv = rsqrtf(g * g * (vv / d) + eps);
#pragma unroll
  for (int j = 0; j < kGateHeld; ++j) {
    const int i = tid + j * kGateThreads;
    if (i >= width) break;
    const float a = g * held[j];
    v[i] = a;
    u[i] = a * rv * norm_of[j];
  }
  for (int i = tid + kGateHeld * kGateThreads; i < width; i += kGateThreads) {
    const float a = g * value[i];
    v[i] = a;
    u[i] = a * rv * (1.0f + norm_conv[i]);
  }
}

constexpr int kThreads = 256;
constexpr int kReach = 9;  // positions between a row and its first tap

// The row of the segment's ring for `position`.
__device__ __forceinline__ int64_t ring_row(const Segment& segment, int64_t position) {
  return int64_t{segment.slot} * kPleRing + position % kPleRing;
}

// Block (t, i): kThreads channels of row t.
//
// A decode segment's rows go to the ring here. What its blocks read there are the kReach positions before the segment,
// what they write are the segment's own, kMaxDrafts + 1 at most: all of them consecutive and, as the ring has a place for
// each, in places of their own. No other segment has the slot.
static_assert(kPleRing >= kReach + kMaxDrafts + 1);
__global__ void __launch_bounds__(kThreads)
    ple_conv_kernel(float* x, const float* v, const float* u, float* ring, const float* conv, BatchView batch,
                    int64_t wide) {
  pdl_launch();
  const int64_t t = blockIdx.x, c = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  // There before the wait: what the rows are, the taps' factors, and earlier steps' rows of the ring, which are on their way
  // to the L2 cache; nothing is read of them yet.
  const Segment segment = batch.segments[batch.segment_of[t]];
  const int64_t position = batch.positions[t];
  const bool runs = segment.role != Role::Pad && c < wide;
  float4 factors{};
  if (runs) {
    factors = reinterpret_cast<const float4*>(conv)[c];
#pragma unroll
    for (int back = 3; back <= kReach; back += 3)
      if (position >= back && t - back < segment.row)
        prefetch_l2(ring + ring_row(segment, position - back) * wide + c);
  }
  pdl_wait();
  if (!runs) return;
  // The oldest first. Positions before 0 are read from the row itself and not counted.
  float tap[4];
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    const int64_t back = 3 * (3 - j);
    const float* from = position < back           ? u + t * wide
                        : t - back >= segment.row ? u + (t - back) * wide
                                                  : ring + ring_row(segment, position - back) * wide;
    tap[j] = from[c];
  }
  const float x_of = x[t * wide + c], v_of = v[t * wide + c];
  const float factor[4] = {factors.x, factors.y, factors.z, factors.w};
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) sum = position < 3 * (3 - j) ? sum : fmaf(factor[j], tap[j], sum);
  x[t * wide + c] = x_of + v_of + scalar::silu(sum);
  if (segment.role == Role::Decode) ring[ring_row(segment, position) * wide + c] = tap[3];
}

// Block (segment, i, j): kThreads channels of a prompt's row j from the end.
__global__ void __launch_bounds__(kThreads)
    ple_ring_kernel(float* ring, const float* u, BatchView batch, int64_t wide) {
  pdl_launch();
  const Segment segment = batch.segments[blockIdx.x];
  const int64_t c = blockIdx.y * int64_t{kThreads} + threadIdx.x;
  pdl_wait();
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.z);
  if (segment.role != Role::Prefill || r < 0 || c >= wide) return;
  ring[ring_row(segment, segment.position + r) * wide + c] = u[(segment.row + r) * wide + c];
}

}  // namespace

void ple_rows(Stream& s, Tensor emb, const BatchView& batch, const NgramHash& hash, const PleTable& table) {
  TableView view{};
  const auto heads = hash.vocab.size();
  QUERN_CHECK(heads <= kMaxHeads && table.parts.size() <= kMaxParts,
              "ple_rows: at most 32 heads and 512 parts");
  for (int i = 0; i < 3; ++i) view.multiplier[i] = hash.multiplier[i];
  for (size_t h = 0; h < heads; ++h) {
    view.vocab[h] = hash.vocab[h];
    view.offset[h] = hash.offset[h];
  }
  for (size_t p = 0; p < table.parts.size(); ++p) {
    QUERN_CHECK(p == 0 || !table.parts[p].scale || table.parts[p].scale.data == table.parts[0].scale.data ||
                    table.parts[p].scale.elements() == 1,
                "ple_rows: parts with scale tensors of their own");
    view.part[p] = reinterpret_cast<const uint8_t*>(table.parts[p].data.data);
    view.scale[p] = table.parts[p].global_scale;
  }
  const Weight& first = table.parts[0];
  view.rows_per_part = std::max<int64_t>(table.rows_per_part, 1);
  view.row_bytes = row_bytes(first.data.dtype, first.data.row_stride);
  view.part_scale = RowScale::of(first);
  view.heads = static_cast<int32_t>(heads);
  view.eos = hash.eos;
  view.d_row = static_cast<int32_t>(table.d_row);
  view.n_parts = static_cast<int32_t>(table.parts.size());
  QUERN_CHECK(view.row_bytes <= kMaxRowBytes, "ple_rows: a table row is at most 1024 bytes");
  with_row_format(first.data.dtype, [&]<typename Row>() {
    QUERN_CHECK(table.d_row % Row::kGroup == 0, "ple_rows: a row is a whole number of groups");
    launch(s, ple_rows_kernel<Row>, dim3(static_cast<unsigned>(batch.n_rows), blocks(view.heads, kRowWarps)),
           32 * kRowWarps, 0, 1, emb.as<float>(), emb.row_stride, batch.windows, view);
  });
}

void ple_add(Stream& s, Tensor x, Tensor key, Tensor value, const PleWeights& w, Tensor ring,
             const BatchView& batch, int streams, float eps) {
  QUERN_CHECK(x.packed(), "ple_add: x is packed");
  const int64_t wide = x.cols();
  const int width = static_cast<int>(wide / streams);
  ScratchScope scope(s);
  const Tensor v = s.scratch(DType::F32, {std::max<int64_t>(batch.n_rows, 1), wide});
  const Tensor u = s.scratch(DType::F32, {std::max<int64_t>(batch.n_rows, 1), wide});
  const auto rows = static_cast<unsigned>(batch.n_rows);
  launch(s, ple_gate_kernel, dim3(rows, static_cast<unsigned>(streams)), kGateThreads, 0, 1, v.as<float>(),
         u.as<float>(), x.as<float>(), key.as<float>(), key.row_stride, value.as<float>(), value.row_stride,
         w.norm_key.as<float>(), w.norm_query.as<float>(), w.norm_conv.as<float>(), width, eps);
  launch(s, ple_conv_kernel, dim3(rows, blocks(wide, kThreads)), kThreads, 0, 1, x.as<float>(), v.as<float>(),
         u.as<float>(), ring.as<float>(), w.conv.as<float>(), batch, wide);
  if (batch.n_rows == batch.n_decode_rows) return;
  const auto last = static_cast<unsigned>(std::min<int64_t>(kPleRing, batch.n_rows));
  launch(s, ple_ring_kernel, dim3(static_cast<unsigned>(batch.n_segments), blocks(wide, kThreads), last),
         kThreads, 0, 1, ring.as<float>(), u.as<float>(), batch, wide);
}

}  // namespace quern::cuda
