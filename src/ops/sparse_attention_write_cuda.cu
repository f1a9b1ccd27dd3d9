// qsa_write: one warp a head. A row has n_heads query heads, n_kv key heads (each warp stores its value head too),
// index_heads index queries and one index key. The ring of raw index keys is written by a kernel of its own: a long
// segment's newest keys take the places its first rows still read.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/scalar.h"
#include "ops/sparse_attention.h"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHalf = 64;  // d_rope / 2

struct WriteArgs {
  float *q_gate, *k, *v, *qi, *ki;
  int64_t q_stride, k_stride, v_stride, qi_stride, ki_stride;
  const float *norm_q, *norm_k, *norm_qi, *norm_ki;
  uint8_t *pages_k, *pages_v;
  float *pooled, *ring;
  BatchView batch;
  float frequency[kMaxHalf];
  int n_heads, n_kv, d_head, d_rope, index_heads, d_index;
  int shift;     // entry of position 0, and pooled key of block 0 (QsaCache)
  int kv_bytes;  // of one element
  DType kv;
  float eps;
};

// Norm and rotation of one head of d values, `from` to `to` (shared memory of the warp), by one warp.
__device__ void norm_rope(float* to, const float* from, const float* w, int d, int d_rope,
                          const float* frequency, int position, float eps) {
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int i = lane; i < d; i += 32) sum = fmaf(from[i], from[i], sum);
  const float r = rsqrtf(warp_sum(sum) / static_cast<float>(d) + eps);
  for (int i = lane; i < d; i += 32) to[i] = from[i] * r * (1.0f + w[i]);
  __syncwarp();
  const int half = d_rope / 2;
  for (int i = lane; i < half; i += 32) {
    const float angle = scalar::rope_angle(position, frequency[i]);
    const float c = cosf(angle), s = sinf(angle), a = to[i], b = to[i + half];
    to[i] = a * c - b * s;
    to[i + half] = b * c + a * s;
  }
  __syncwarp();
}

__device__ void store_kv(uint8_t* to, const float* from, int d, DType type) {
  for (int i = threadIdx.x % 32; i < d; i += 32) {
    if (type == DType::F32) reinterpret_cast<float*>(to)[i] = from[i];
    if (type == DType::BF16) reinterpret_cast<__nv_bfloat16*>(to)[i] = __float2bfloat16_rn(from[i]);
    if (type == DType::F16) reinterpret_cast<__half*>(to)[i] = __float2half_rn(from[i]);
  }
}

__global__ void __launch_bounds__(32 * kWarps) qsa_write_kernel(const __grid_constant__ WriteArgs a) {
  extern __shared__ float shared[];
  pdl_launch();
  const int64_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.y) * kWarps + warp;
  float* x = shared + warp * max(a.d_head, a.d_index);
  const Segment segment = a.batch.segments[a.batch.segment_of[t]];
  const int p = a.batch.positions[t];
  pdl_wait();  // not for what a step's rows are: copies write that, and the end of a step
  if (segment.role == Role::Pad) return;

  int h = head;
  if (h < a.n_heads) {
    float* q = a.q_gate + t * a.q_stride + h * 2 * a.d_head;
    norm_rope(x, q, a.norm_q, a.d_head, a.d_rope, a.frequency, p, a.eps);
    for (int i = lane; i < a.d_head; i += 32) q[i] = x[i];
    return;
  }
  h -= a.n_heads;
  const int32_t* pages = a.batch.page_tables + segment.page_table;
  if (h < a.n_kv) {
    float* k = a.k + t * a.k_stride + h * a.d_head;
    norm_rope(x, k, a.norm_k, a.d_head, a.d_rope, a.frequency, p, a.eps);
    for (int i = lane; i < a.d_head; i += 32) k[i] = x[i];
    const int at = p + a.shift;
    const int64_t row = (int64_t{pages[at / kPageTokens]} * a.n_kv + h) * kPageTokens + at % kPageTokens;
    const int64_t entry = row * a.d_head * a.kv_bytes;
    store_kv(a.pages_k + entry, x, a.d_head, a.kv);
    store_kv(a.pages_v + entry, a.v + t * a.v_stride + h * a.d_head, a.d_head, a.kv);
    return;
  }
  h -= a.n_kv;
  if (h < a.index_heads) {
    float* qi = a.qi + t * a.qi_stride + h * a.d_index;
    norm_rope(x, qi, a.norm_qi, a.d_index, a.d_rope, a.frequency, p, a.eps);
    for (int i = lane; i < a.d_index; i += 32) qi[i] = x[i];
    return;
  }
  h -= a.index_heads;
  if (h > 0 || p % kBlockTokens != kBlockTokens - 1) return;
  // The block's four raw keys: rows of this segment, or what earlier steps left in the ring.
  const float* raw[kBlockTokens];
#pragma unroll
  for (int j = 0; j < kBlockTokens; ++j) {
    const int at = p - (kBlockTokens - 1) + j, row = segment.row + at - segment.position;
    raw[j] = at >= segment.position
                 ? a.ki + row * a.ki_stride
                 : a.ring + (int64_t{segment.slot} * kConvRing + at % kConvRing) * a.d_index;
  }
  for (int i = lane; i < a.d_index; i += 32)
    x[i] = (((raw[0][i] + raw[1][i]) + raw[2][i]) + raw[3][i]) * 0.25f;
  __syncwarp();
  const int block = p / kBlockTokens + a.shift;
  float* pooled =
      a.pooled + (int64_t{pages[block / kPageBlocks]} * kPageBlocks + block % kPageBlocks) * a.d_index;
  norm_rope(x, x, a.norm_ki, a.d_index, a.d_rope, a.frequency, p - (kBlockTokens - 1), a.eps);
  for (int i = lane; i < a.d_index; i += 32) pooled[i] = x[i];
}

// Block (segment, j): the raw key of its row j from the end.
__global__ void qsa_ring_kernel(float* ring, const float* ki, int64_t ki_stride, BatchView batch, int d) {
  pdl_launch();
  const Segment segment = batch.segments[blockIdx.x];
  pdl_wait();
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.y);
  if (segment.role == Role::Pad || r < 0) return;
  float* to = ring + (int64_t{segment.slot} * kConvRing + (segment.position + r) % kConvRing) * d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) to[i] = ki[(segment.row + r) * ki_stride + i];
}

}  // namespace

void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps) {
  WriteArgs a{};
  QUERN_CHECK(shape.d_rope / 2 <= kMaxHalf, "qsa_write: d_rope is at most 128");
  a.q_gate = q_gate.as<float>();
  a.k = k.as<float>();
  a.v = v.as<float>();
  a.qi = qi.as<float>();
  a.ki = ki.as<float>();
  a.q_stride = q_gate.row_stride;
  a.k_stride = k.row_stride;
  a.v_stride = v.row_stride;
  a.qi_stride = qi.row_stride;
  a.ki_stride = ki.row_stride;
  a.norm_q = norms.q.as<float>();
  a.norm_k = norms.k.as<float>();
  a.norm_qi = norms.index_q.as<float>();
  a.norm_ki = norms.index_k.as<float>();
  a.pages_k = reinterpret_cast<uint8_t*>(cache.k.data);
  a.pages_v = reinterpret_cast<uint8_t*>(cache.v.data);
  a.pooled = cache.pooled.as<float>();
  a.ring = cache.ring.as<float>();
  a.batch = batch;
  for (int i = 0; i < shape.d_rope / 2; ++i) {
    a.frequency[i] = scalar::rope_frequency(i, shape.d_rope, shape.rope_theta);
  }
  a.n_heads = shape.n_heads;
  a.n_kv = shape.n_kv;
  a.d_head = shape.d_head;
  a.d_rope = shape.d_rope;
  a.index_heads = shape.index_heads;
  a.d_index = shape.d_index;
  a.shift = cache.shift;
  a.kv = cache.k.dtype;
  a.kv_bytes = dtype_info(cache.k.dtype).bytes;
  a.eps = eps;
  const int heads = shape.n_heads + shape.n_kv + shape.index_heads + 1;
  const size_t shared = sizeof(float) * kWarps * static_cast<size_t>(std::max(shape.d_head, shape.d_index));
  launch(s, qsa_write_kernel, dim3(static_cast<unsigned>(batch.n_rows), blocks(heads, kWarps)), 32 * kWarps,
         shared, 1, a);
  launch(s, qsa_ring_kernel, dim3(static_cast<unsigned>(batch.n_segments), kConvRing), 128, 0, 1,
         cache.ring.as<float>(), ki.as<float>(), ki.row_stride, batch, shape.d_index);
}

}  // namespace quern::cuda
