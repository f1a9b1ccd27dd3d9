// qsa_write: one warp a head, whose elements it keeps in registers. A row has n_heads query heads, n_kv key heads (each
// warp stores its value head too), index_heads index queries and one index key.
//
// The ring of raw index keys. A decode row's own index key is written by the warp that has it: what a launch reads of the
// ring are positions before a segment's first, at most kBlockTokens - 1 back, and what it writes are the segment's at most
// kMaxDrafts + 1, so both lie among kBlockTokens + kMaxDrafts consecutive positions, which the ring holds in places of their
// own; and a slot is of one segment. A prompt's segment may be longer and its newest keys take the places that its first
// rows still read: a kernel behind this one writes them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/cuda/launch.cuh"
#include "ops/cuda/reduce.cuh"
#include "ops/scalar.h"
#include "ops/sparse_attention.h"

namespace quern::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kMaxHalf = 64;    // d_rope / 2
constexpr int kLaneValues = 8;  // of a head, by a lane: heads of at most 256

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

// Elements lane, lane + 32, … of a head of d.
__device__ __forceinline__ void load_head(float (&x)[kLaneValues], const float* from, int d) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kLaneValues; ++k) x[k] = lane + 32 * k < d ? from[lane + 32 * k] : 0.0f;
}
__device__ __forceinline__ void store_head(float* to, const float (&x)[kLaneValues], int d) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int k = 0; k < kLaneValues; ++k)
    if (lane + 32 * k < d) to[lane + 32 * k] = x[k];
}
__device__ __forceinline__ void store_kv(uint8_t* to, const float (&x)[kLaneValues], int d, DType type) {
  const int lane = threadIdx.x % 32;
  if (type == DType::F32) {
    store_head(reinterpret_cast<float*>(to), x, d);
  } else {
#pragma unroll
    for (int k = 0; k < kLaneValues; ++k) {
      const uint16_t bits = type == DType::BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(x[k]))
                                                : __half_as_ushort(__float2half_rn(x[k]));
      if (lane + 32 * k < d) reinterpret_cast<uint16_t*>(to)[lane + 32 * k] = bits;
    }
  }
}

static_assert(kBlockTokens + kMaxDrafts <= kConvRing);

enum class Head { Query, Key, IndexQuery, IndexKey };

// d_rope = 64·kTurns: both elements of a rotated pair are a lane's own.
template <int kTurns>
__global__ void __launch_bounds__(32 * kWarps) qsa_write_kernel(const __grid_constant__ WriteArgs a) {
  pdl_launch();
  const int64_t t = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  int h = static_cast<int>(blockIdx.y) * kWarps + warp;
  // Before the wait: weights, what a step's rows are (copies write that, and the end of a step), and all that follows from
  // these. Of a kernel of one row this is the longer part.
  const Segment segment = a.batch.segments[a.batch.segment_of[t]];
  const int p = a.batch.positions[t];
  const int32_t* pages = a.batch.page_tables + segment.page_table;
  Head head;
  int d = a.d_head, turn = p;  // its width; the position by which it turns
  const float *norm, *from;
  float* to;
  uint8_t *page_k = nullptr, *page_v = nullptr;
  // An index key's: whether it completes its block, and where the block's others are (in this segment, or in the ring).
  bool completes = false;
  const float* raw[kBlockTokens - 1] = {};
  bool used = segment.role != Role::Pad;
  if (h < a.n_heads) {
    head = Head::Query;
    norm = a.norm_q;
    from = to = a.q_gate + t * a.q_stride + h * 2 * a.d_head;
  } else if ((h -= a.n_heads) < a.n_kv) {
    head = Head::Key;
    norm = a.norm_k;
    from = to = a.k + t * a.k_stride + h * a.d_head;
    if (used) {
      const int at = p + a.shift;
      const int64_t row = (int64_t{pages[at / kPageTokens]} * a.n_kv + h) * kPageTokens + at % kPageTokens;
      page_k = a.pages_k + row * a.d_head * a.kv_bytes;
      page_v = a.pages_v + row * a.d_head * a.kv_bytes;
    }
  } else if ((h -= a.n_kv) < a.index_heads) {
    head = Head::IndexQuery;
    d = a.d_index;
    norm = a.norm_qi;
    from = to = a.qi + t * a.qi_stride + h * a.d_index;
  } else {
    head = Head::IndexKey;
    d = a.d_index;
    norm = a.norm_ki;
    from = a.ki + t * a.ki_stride;
    to = nullptr;
    turn = p - (kBlockTokens - 1);
    completes = p % kBlockTokens == kBlockTokens - 1;
    used = used && h == a.index_heads && (completes || segment.role == Role::Decode);
    if (used && completes) {
      const int block = p / kBlockTokens + a.shift;
      to = a.pooled + (int64_t{pages[block / kPageBlocks]} * kPageBlocks + block % kPageBlocks) * a.d_index;
#pragma unroll
      for (int j = 0; j < kBlockTokens - 1; ++j) {
        const int at = turn + j, row = segment.row + at - segment.position;
        raw[j] = at >= segment.position
                     ? a.ki + row * a.ki_stride
                     : a.ring + (int64_t{segment.slot} * kConvRing + at % kConvRing) * a.d_index;
      }
    }
  }
  float w[kLaneValues], c[kTurns], s[kTurns];
  load_head(w, norm, d);
#pragma unroll
  for (int j = 0; j < kTurns; ++j) {
    sincosf(scalar::rope_angle(turn, a.frequency[lane + 32 * j]), &s[j], &c[j]);
    made_here(s[j]);
    made_here(c[j]);
  }
  pdl_wait();
  if (!used) return;

  float x[kLaneValues], v[kLaneValues];
  load_head(x, from, d);
  if (head == Head::Key) load_head(v, a.v + t * a.v_stride + h * a.d_head, d);
  if (head == Head::IndexKey) {
    float before[kBlockTokens - 1][kLaneValues] = {};
    if (completes) {
#pragma unroll
      for (int j = 0; j < kBlockTokens - 1; ++j) load_head(before[j], raw[j], d);
    }
    if (segment.role == Role::Decode)
      store_head(a.ring + (int64_t{segment.slot} * kConvRing + p % kConvRing) * d, x, d);
    if (!completes) return;
#pragma unroll
    for (int k = 0; k < kLaneValues; ++k)
      x[k] = (((before[0][k] + before[1][k]) + before[2][k]) + x[k]) * 0.25f;
  }
  float sum = 0;
#pragma unroll
  for (int k = 0; k < kLaneValues; ++k) sum = fmaf(x[k], x[k], sum);
  const float r = rsqrtf(warp_sum(sum) / static_cast<float>(d) + a.eps);
#pragma unroll
  for (int k = 0; k < kLaneValues; ++k) x[k] = x[k] * r * (1.0f + w[k]);
#pragma unroll
  for (int j = 0; j < kTurns; ++j) {
    const float left = x[j], right = x[j + kTurns];
    x[j] = left * c[j] - right * s[j];
    x[j + kTurns] = right * c[j] + left * s[j];
  }
  store_head(to, x, d);
  if (head == Head::Key) {
    store_kv(page_k, x, d, a.kv);
    store_kv(page_v, v, d, a.kv);
  }
}

// Block (segment, j): the raw key of its row j from the end, of a prompt's segment.
__global__ void qsa_ring_kernel(float* ring, const float* ki, int64_t ki_stride, BatchView batch, int d) {
  pdl_launch();
  const Segment segment = batch.segments[blockIdx.x];
  pdl_wait();
  const int r = segment.n_rows - 1 - static_cast<int>(blockIdx.y);
  if (segment.role != Role::Prefill || r < 0) return;
  float* to = ring + (int64_t{segment.slot} * kConvRing + (segment.position + r) % kConvRing) * d;
  for (int i = threadIdx.x; i < d; i += blockDim.x) to[i] = ki[(segment.row + r) * ki_stride + i];
}

}  // namespace

void qsa_write(Stream& s, Tensor q_gate, Tensor k, Tensor v, Tensor qi, Tensor ki, const QsaShape& shape,
               const QsaNorms& norms, const QsaCache& cache, const BatchView& batch, float eps) {
  WriteArgs a{};
  QUERN_CHECK((shape.d_rope == 64 || shape.d_rope == 128) &&
                  std::max(shape.d_head, shape.d_index) <= 32 * kLaneValues,
              "qsa_write on CUDA: d_rope is 64 or 128, heads are at most 256 wide");
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
  launch(s, shape.d_rope == 64 ? qsa_write_kernel<1> : qsa_write_kernel<2>,
         dim3(static_cast<unsigned>(batch.n_rows), blocks(heads, kWarps)), 32 * kWarps, 0, 1, a);
  if (batch.n_rows > batch.n_decode_rows) {
    launch(s, qsa_ring_kernel, dim3(static_cast<unsigned>(batch.n_segments), kConvRing), 128, 0, 1,
           cache.ring.as<float>(), ki.as<float>(), ki.row_stride, batch, shape.d_index);
  }
}

}  // namespace quern::cuda
