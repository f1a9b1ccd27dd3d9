// moe for many decode rows and 4-bit experts: a step of 64 rows meets some 370 of 512 experts, most of them once or twice.
//
// What binds is instructions, so a block has as few beside the products as it can. Entries sorted by expert are cut into
// items of up to four; h is rounded and ordered for the tensor cores once, by the kernel that sorts; a tile's rows are
// whole in K, thus one piece of memory that the bulk engine copies at once; and few columns of x leave room for sixteen
// warps a multiprocessor. A shared expert in FP8 has blocks of its own in the same launches, a warp taking 32 rows by a
// tile. Sums are those of moe_decode_cuda.cu: gate and up in four parts of K, down in one.
#include "ops/cuda/f4_rows.cuh"
#include "ops/cuda/f8_tile.cuh"
#include "ops/cuda/moe_launch.cuh"
#include "ops/cuda/pipeline.cuh"
#include "ops/cuda/weight_stream.cuh"

namespace quern::cuda {
namespace {

constexpr int kColumns = 4;  // entries of an item
constexpr int kParts = 4;    // of K, for gate and up
constexpr int kTeams = 2, kThreads = kTeams * kParts * 32, kWarps = kThreads / 32;
constexpr int kStages = 2;  // tiles on their way for each team or warp
constexpr int kSortThreads = 1024, kMaskWords = 4;
constexpr int kMaxRows = 32 * kMaskWords;
constexpr int kSharedTiles = 4, kSharedRows = 8 * kSharedTiles;  // of a warp's rows in the shared expert

struct BatchArgs {
  WeightView gate, up, down;
  const int4* items = nullptr;       // expert, first place, places; no places: nothing to do
  const int32_t* entries = nullptr;  // of each place
  int32_t top_k = 0, tiles_per_block = 0;
  const uint8_t* x = nullptr;  // rows of h, then of act by place, as XTile orders them
  uint8_t* act = nullptr;
  int32_t x_bytes = 0, act_bytes = 0;  // of such a row
  float* y = nullptr;                  // [entries, n of down]
  // The shared expert: rows of h and of act in F16, in order; blocks y < shared_slots of the grids.
  WeightView shared_gate, shared_up, shared_down;
  const uint8_t* shared_x = nullptr;
  uint8_t* shared_act = nullptr;
  float* shared_y = nullptr;
  int32_t n_rows = 0, shared_slots = 0;
};

// ---- sorting ----

// Block 0: entries by expert, ascending, and their items. Block 1 + t: row t of h, for the experts and, where shared_x is
// not null, for the shared one, with its weight.
__global__ __launch_bounds__(kSortThreads) void moe_items_kernel(const __grid_constant__ MoeView m,
                                                                 int4* items, int max_items, int32_t* entries,
                                                                 uint8_t* x, uint8_t* shared_x, int x_bytes,
                                                                 float* shared_weight) {
  __shared__ __align__(16) uint32_t named[kSortThreads][kMaskWords];  // by which rows
  __shared__ int32_t first[kSortThreads], warps[kSortThreads / 32];
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32;
  pdl_wait();
  pdl_launch();
  if (blockIdx.x > 0) {
    const int t = static_cast<int>(blockIdx.x) - 1;
    const XTile to{x + int64_t{t} * x_bytes, x_bytes, 1, 0, m.h.k, XOrder::Nibbles},
        to_shared{shared_x + int64_t{t} * x_bytes, x_bytes, 1, 0, m.h.k, XOrder::Half};
    for (int chunk = tid; chunk < m.h.k / 8; chunk += kSortThreads) {
      float v[8];
      load_eight(v, m.h.row(t), 8 * chunk, m.h.k, m.h.wide);
      to.put(0, chunk, v);
      if (shared_x) to_shared.put(0, chunk, v);
    }
    if (!shared_x) return;
    constexpr int kDotWarps = kSharedDotThreads / 32;
    if (tid < kSharedDotThreads) {
      const float v = warp_sum(row_dot_part<kSharedDotThreads>(m.shared_expert_gate, m.h.row(t), m.h.wide));
      if (lane == 0) warps[warp] = __float_as_int(v);
    }
    __syncthreads();
    if (tid == 0) {
      float sum = 0;
      for (int i = 0; i < kDotWarps; ++i) sum += __int_as_float(warps[i]);
      shared_weight[t] = scalar::sigmoid(sum);
    }
    return;
  }
  *reinterpret_cast<uint4*>(named[tid]) = make_uint4(0, 0, 0, 0);
  __syncthreads();
  const int n = m.h.n_rows * m.top_k, row = tid / m.top_k;
  int id = 0;
  if (tid < n) {
    id = __ldcg(m.ids + tid);
    atomicOr(&named[id][row / 32], 1u << (row % 32));
  }
  __syncthreads();
  int count = 0;
#pragma unroll
  for (int i = 0; i < kMaskWords; ++i) count += __popc(named[tid][i]);
  // Entries and items before this expert, in the halves of one sum.
  const int n_items = (count + kColumns - 1) / kColumns, mine = count | n_items << 16;
  int before = mine;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const int other = __shfl_up_sync(0xffffffffu, before, d);
    if (lane >= d) before += other;
  }
  if (lane == 31) warps[warp] = before;
  __syncthreads();
  before -= mine;
  int total = 0;
  for (int w = 0; w < kSortThreads / 32; ++w) {
    if (w < warp) before += warps[w];
    total += warps[w];
  }
  const int place = before & 0xffff, item = before >> 16;
  first[tid] = place;
  for (int i = 0; i < n_items; ++i)
    items[item + i] = make_int4(tid, place + i * kColumns, min(kColumns, count - i * kColumns), 0);
  for (int i = (total >> 16) + tid; i < max_items; i += kSortThreads) items[i] = make_int4(0, 0, 0, 0);
  __syncthreads();
  if (tid < n) {
    int earlier = 0;
#pragma unroll
    for (int i = 0; i < kMaskWords; ++i) {
      const uint32_t mask = i < row / 32 ? 0xffffffffu : i == row / 32 ? (1u << (row % 32)) - 1 : 0u;
      earlier += __popc(named[id][i] & mask);
    }
    entries[first[id] + earlier] = tid;
  }
}

// ---- tiles ----

__device__ __forceinline__ void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// ---- the shared expert ----

// acc = steps [begin, end) of a tile by rows first … first + 31 of x.
__device__ __forceinline__ void shared_walk(float (&acc)[kSharedTiles][4], uint8_t* memory,
                                            const WeightView& w0, int row0, const WeightView& w1, int row1,
                                            int begin, int end, const uint8_t* x, int x_bytes, int first,
                                            int n_rows) {
  F8Tile tile(memory, w0, row0, w1, row1);
  const int first_pass = begin / 2, end_pass = (end + 1) / 2, lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
  for (int i = 0; i < kF8Stages - 1; ++i) {
    if (first_pass + i < end_pass) tile.fetch(first_pass + i, i);
    cp_async_commit();
  }
  const uint8_t* column[kSharedTiles];
#pragma unroll
  for (int j = 0; j < kSharedTiles; ++j)
    column[j] = x + int64_t{min(first + 8 * j + lane / 4, n_rows - 1)} * x_bytes + 32 * (lane % 4);
  int stage = 0, next = kF8Stages - 1;
#pragma unroll 1
  for (int pass = first_pass; pass < end_pass; ++pass) {
    const float s0 = f8_scale(w0, row0, pass), s1 = f8_scale(w1, row1, pass);
    cp_async_wait<kF8Stages - 2>();
    __syncwarp();
    if (pass + kF8Stages - 1 < end_pass) tile.fetch(pass + kF8Stages - 1, next);
    cp_async_commit();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int step = 2 * pass + half;
      if (step < begin || step >= end) continue;
      tile.step<kSharedTiles>(acc, stage, half, s0, s1, [&](int j, uint4(&b)[2]) {
        b[0] = __ldcg(reinterpret_cast<const uint4*>(column[j] + 128 * step));
        b[1] = __ldcg(reinterpret_cast<const uint4*>(column[j] + 128 * step + 16));
      });
    }
    __syncwarp();
    next = stage;
    if (++stage == kF8Stages) stage = 0;
  }
  cp_async_wait<0>();
}
constexpr int kSharedMemory =
    kWarps * kF8Stages * kF8Stage;  // bytes a block, and as much as a quarter for sums

// Block `block` of the shared expert's: kTeams tiles of eight rows of gate and the same of up, by 32 rows of h.
__device__ __forceinline__ void shared_gate_up(const BatchArgs& a, uint8_t* memory, int block) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, team = warp / kParts,
            part = warp % kParts, g = lane / 4, t = lane % 4;
  const WeightView &gate = a.shared_gate, &up = a.shared_up;
  const int groups = (a.n_rows + kSharedRows - 1) / kSharedRows, unit = block * kTeams + team,
            row = unit / groups * 8, first = unit % groups * kSharedRows;
  float4* const sums = reinterpret_cast<float4*>(memory + kSharedMemory) + team * kParts * kSharedTiles * 32;
  if (row < gate.n) {
    const int steps = gate.k / 64;
    float acc[kSharedTiles][4] = {};
    shared_walk(acc, memory + warp * kF8Stages * kF8Stage, gate, row, up, row,
                part_begin(steps, part, kParts), part_begin(steps, part + 1, kParts), a.shared_x, a.x_bytes,
                first, a.n_rows);
    const float f0 = gate.row_factor(row + g), f1 = up.row_factor(row + g);
#pragma unroll
    for (int j = 0; j < kSharedTiles; ++j)
      sums[(part * kSharedTiles + j) * 32 + lane] =
          make_float4(acc[j][0] * f0, acc[j][1] * f0, acc[j][2] * f1, acc[j][3] * f1);
  }
  __syncthreads();
  if (row >= gate.n) return;
  static_assert(kSharedTiles == kParts);  // a warp sums one tile of rows
  float4 v = sums[part * 32 + lane];
#pragma unroll
  for (int p = 1; p < kParts; ++p) {
    const float4 u = sums[(p * kSharedTiles + part) * 32 + lane];
    v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
  }
  const int c = first + 8 * part + 2 * t;
  const uint32_t two = pack_f16(scalar::silu(v.x) * v.z, scalar::silu(v.y) * v.w);
  auto* to = reinterpret_cast<uint16_t*>(a.shared_act) + int64_t{c} * gate.n + row + g;
  if (c < a.n_rows) to[0] = static_cast<uint16_t>(two);
  if (c + 1 < a.n_rows) to[gate.n] = static_cast<uint16_t>(two >> 16);
}

// A warp takes 16 rows of down by 32 rows of act.
__device__ __forceinline__ void shared_down(const BatchArgs& a, uint8_t* memory, int block) {
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const WeightView& down = a.shared_down;
  const int groups = (a.n_rows + kSharedRows - 1) / kSharedRows, unit = block * kWarps + warp,
            row = unit / groups * 16, first = unit % groups * kSharedRows;
  if (row >= down.n) return;
  float acc[kSharedTiles][4] = {};
  shared_walk(acc, memory + warp * kF8Stages * kF8Stage, down, row, down, row + 8, 0, down.k / 64,
              a.shared_act, down.k * 2, first, a.n_rows);
  const float f0 = down.row_factor(row + g), f1 = down.row_factor(row + 8 + g);
#pragma unroll
  for (int j = 0; j < kSharedTiles; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int c = first + 8 * j + 2 * t + e % 2;
      if (c < a.n_rows)
        a.shared_y[int64_t{c} * down.n + row + g + 8 * (e / 2)] = acc[j][e] * (e < 2 ? f0 : f1);
    }
  }
}

// ---- gate and up ----

// act[place] = silu(gate · h) · (up · h), in F16. A tile is eight rows of gate and the same eight of up; the four warps of
// a team take its parts of K, the first of them sums.
//
// Two named barriers of a team's 128 threads order part_sums. On the first, the 96 of parts 1 to 3 arrive behind their
// stores and part 0 (32) waits, so it reads what they wrote. On the second, part 0 arrives behind its loads and the others
// wait before the next tile's stores. Phases cannot mix: parts 1 to 3 come to the first again only behind the second, which
// is complete only with part 0, which then is through with the first. Behind a barrier everything is done that its threads
// asked for before it, loads too, whether they arrived or waited. racecheck follows the first and reports the second as a
// potential write after read.
__global__ __launch_bounds__(kThreads, 2) void moe_batch_gate_up_kernel(const __grid_constant__ BatchArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ __align__(16) float4 part_sums[kTeams][kParts - 1][16];
  __shared__ uint64_t barriers[kTeams * kStages + 1];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, team = tid / (32 * kParts),
            part = tid / 32 % kParts, g = lane / 4, t = lane % 4;
  pdl_wait();
  if (static_cast<int>(blockIdx.y) < a.shared_slots) {
    pdl_launch();
    shared_gate_up(a, memory, static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x));
    return;
  }
  const int4 item = __ldcg(a.items + blockIdx.y - a.shared_slots);
  pdl_launch();
  if (item.z == 0) return;
  barriers_for_copies(barriers, kTeams * kStages + 1);
  const WeightView gate = a.gate.expert(item.x), up = a.up.expert(item.x);
  const int row_bytes = static_cast<int>(gate.row_bytes), scale_bytes = row_bytes / 8,
            stage_bytes = gate_stage(row_bytes), stride = column_stride(a.x_bytes);
  const int n_tiles = gate.n / 8, block_begin = static_cast<int>(blockIdx.x) * a.tiles_per_block,
            block_end = min(block_begin + a.tiles_per_block, n_tiles);
  const uint32_t base = shared_address(memory), columns = base + kTeams * kStages * stage_bytes;
  uint64_t* const x_barrier = barriers + kTeams * kStages;
  const auto stage_of = [&](int i) { return base + (team * kStages + i) * stage_bytes; };
  const auto barrier_of = [&](int i) { return barriers + team * kStages + i; };
  const auto fetch = [&](int tile, int i) {
    const uint32_t to = stage_of(i);
    uint64_t* const bar = barrier_of(i);
    barrier_expect(bar, 16 * (row_bytes + scale_bytes));
    bulk_copy(to, gate.data + int64_t{tile} * 8 * row_bytes, 8 * row_bytes, bar);
    bulk_copy(to + up_offset(row_bytes), up.data + int64_t{tile} * 8 * row_bytes, 8 * row_bytes, bar);
    const uint32_t scales = to + up_offset(row_bytes) + 8 * row_bytes;
    bulk_copy(scales, static_cast<const uint8_t*>(gate.scale) + int64_t{tile} * 8 * scale_bytes,
              8 * scale_bytes, bar);
    bulk_copy(scales + 8 * scale_bytes,
              static_cast<const uint8_t*>(up.scale) + int64_t{tile} * 8 * scale_bytes, 8 * scale_bytes, bar);
  };
  if (part == 0 && lane == 0) {
    for (int i = 0; i < kStages; ++i)
      if (block_begin + team + i * kTeams < block_end) fetch(block_begin + team + i * kTeams, i);
  }
  if (tid == 32) {
    barrier_expect(x_barrier, item.z * a.x_bytes);
    for (int c = 0; c < item.z; ++c) {
      const int row = __ldcg(a.entries + item.y + c) / a.top_k;
      bulk_copy(columns + c * stride, a.x + int64_t{row} * a.x_bytes, a.x_bytes, x_barrier);
    }
  }
  const int steps = row_bytes / 64, begin = part_begin(steps, part, kParts),
            n_steps = part_begin(steps, part + 1, kParts) - begin;
  const bool odd = g % 2;
  const uint32_t gate_at = g * row_bytes + 64 * begin + 16 * t, up_at = gate_at + up_offset(row_bytes);
  const uint32_t gate_scales = up_offset(row_bytes) + 8 * row_bytes + g * scale_bytes + 8 * begin + 2 * t,
                 up_scales = gate_scales + 8 * scale_bytes;
  const float gate_factor = gate.global_scale * kE2m1Rest, up_factor = up.global_scale * kE2m1Rest;
  const uint32_t x = columns + min(g, item.z - 1) * stride + 256 * begin + 64 * t;
  barrier_wait(x_barrier, 0);
  int stage = 0;
  int parity = 0;
#pragma unroll 1
  for (int tile = block_begin + team; tile < block_end; tile += kTeams) {
    barrier_wait(barrier_of(stage), parity);
    const uint32_t from = stage_of(stage);
    float acc[4] = {};
    if (n_steps > 0) {
      walk_rows(acc, from + (odd ? up_at : gate_at), from + (odd ? gate_at : up_at),
                from + (odd ? up_scales : gate_scales), from + (odd ? gate_scales : up_scales), x, n_steps);
    }
    // Columns 2t and 2t + 1 of gate's row g, then of up's.
    float4 v =
        odd ? make_float4(acc[2], acc[3], acc[0], acc[1]) : make_float4(acc[0], acc[1], acc[2], acc[3]);
    v.x *= gate_factor, v.y *= gate_factor, v.z *= up_factor, v.w *= up_factor;
    const int at = 2 * g + t;
    if (part > 0) {
      if (tile != block_begin + team) named_sync(2 * team + 2, 32 * kParts);  // the last tile's sums are read
      if (t < 2) part_sums[team][part - 1][at] = v;
      named_arrive(2 * team + 1, 32 * kParts);
    } else {
      named_sync(2 * team + 1, 32 * kParts);
      if (t < 2) {
#pragma unroll
        for (int p = 0; p < kParts - 1; ++p) {
          const float4 u = part_sums[team][p][at];
          v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
        }
      }
      __syncwarp();
      if (tile + kTeams < block_end) named_arrive(2 * team + 2, 32 * kParts);
      if (lane == 0 && tile + kStages * kTeams < block_end) fetch(tile + kStages * kTeams, stage);
      if (t < 2) {
        // Row 8·tile + g: the g-th value of eight of K.
        const int chunk = tile ^ (tile >> 3 & 1), place = item.y + 2 * t;
        uint8_t* to = a.act + int64_t{place} * a.act_bytes + 16 * chunk + 2 * (4 * (g % 2) + g / 2);
        const uint32_t two = pack_f16(scalar::silu(v.x) * v.z, scalar::silu(v.y) * v.w);
        if (2 * t < item.z) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(two);
        if (2 * t + 1 < item.z)
          *reinterpret_cast<uint16_t*>(to + a.act_bytes) = static_cast<uint16_t>(two >> 16);
      }
    }
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// ---- down ----

__host__ __device__ inline int down_stage(int row_bytes) { return 16 * (row_bytes + row_bytes / 8); }

// y[entry] = down · act[place]: a warp takes tiles of 16 rows one after the other.
__global__ __launch_bounds__(kThreads, 2) void moe_batch_down_kernel(const __grid_constant__ BatchArgs a) {
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ uint64_t barriers[kWarps * kStages + 1];
  const int tid = static_cast<int>(threadIdx.x), lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  pdl_wait();
  if (static_cast<int>(blockIdx.y) < a.shared_slots) {
    pdl_launch();
    shared_down(a, memory, static_cast<int>(blockIdx.y * gridDim.x + blockIdx.x));
    return;
  }
  const int4 item = __ldcg(a.items + blockIdx.y - a.shared_slots);
  pdl_launch();
  if (item.z == 0) return;
  barriers_for_copies(barriers, kWarps * kStages + 1);
  const WeightView down = a.down.expert(item.x);
  const int row_bytes = static_cast<int>(down.row_bytes), scale_bytes = row_bytes / 8,
            stage_bytes = down_stage(row_bytes);
  const int n_tiles = down.n / 16, block_begin = static_cast<int>(blockIdx.x) * a.tiles_per_block,
            block_end = min(block_begin + a.tiles_per_block, n_tiles);
  const uint32_t base = shared_address(memory), columns = base + kWarps * kStages * stage_bytes;
  uint64_t* const x_barrier = barriers + kWarps * kStages;
  const auto stage_of = [&](int i) { return base + (warp * kStages + i) * stage_bytes; };
  const auto barrier_of = [&](int i) { return barriers + warp * kStages + i; };
  const auto fetch = [&](int tile, int i) {
    const uint32_t to = stage_of(i);
    uint64_t* const bar = barrier_of(i);
    barrier_expect(bar, stage_bytes);
    bulk_copy(to, down.data + int64_t{tile} * 16 * row_bytes, 16 * row_bytes, bar);
    bulk_copy(to + 16 * row_bytes, static_cast<const uint8_t*>(down.scale) + int64_t{tile} * 16 * scale_bytes,
              16 * scale_bytes, bar);
  };
  if (lane == 0) {
    for (int i = 0; i < kStages; ++i)
      if (block_begin + warp + i * kWarps < block_end) fetch(block_begin + warp + i * kWarps, i);
  }
  if (tid == 0) {  // rows of act lie as columns do
    barrier_expect(x_barrier, item.z * a.act_bytes);
    bulk_copy(columns, a.act + int64_t{item.y} * a.act_bytes, item.z * a.act_bytes, x_barrier);
  }
  const int steps = row_bytes / 64;
  const uint32_t upper = g * row_bytes + 16 * t, scales = 16 * row_bytes + g * scale_bytes + 2 * t;
  const float factor = down.global_scale * kE2m1Rest;
  const uint32_t x = columns + min(g, item.z - 1) * a.act_bytes + 64 * t;
  float* y[2] = {};
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    if (2 * t + c < item.z) y[c] = a.y + int64_t{__ldcg(a.entries + item.y + 2 * t + c)} * down.n + g;
  }
  barrier_wait(x_barrier, 0);
  int stage = 0;
  int parity = 0;
#pragma unroll 1
  for (int tile = block_begin + warp; tile < block_end; tile += kWarps) {
    barrier_wait(barrier_of(stage), parity);
    const uint32_t from = stage_of(stage);
    float acc[4] = {};
    walk_rows(acc, from + upper, from + upper + 8 * row_bytes, from + scales, from + scales + 8 * scale_bytes,
              x, steps);
    __syncwarp();
    if (lane == 0 && tile + kStages * kWarps < block_end) fetch(tile + kStages * kWarps, stage);
#pragma unroll
    for (int e = 0; e < 4; ++e)
      if (y[e % 2]) y[e % 2][tile * 16 + 8 * (e / 2)] = acc[e] * factor;
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// What the shared expert's blocks take.
bool shared_in_batch(const MoeView& m) {
  for (const WeightView* w : {&m.shared_gate, &m.shared_up, &m.shared_down})
    if (!is_f8(*w) || !streams(*w) || w->k % 64 != 0) return false;
  return m.shared_gate.n % 8 == 0 && m.shared_down.n % 16 == 0;
}
int gate_shared(const MoeView& m) {
  return kTeams * kStages * gate_stage(static_cast<int>(m.gate.row_bytes)) +
         kColumns * column_stride(m.h.k * 2);
}
int down_shared(const MoeView& m) {
  return kWarps * kStages * down_stage(static_cast<int>(m.down.row_bytes)) +
         kColumns * column_stride(m.down.k * 2);
}

}  // namespace

bool takes_batch(Stream& s, const MoeView& m) {
  constexpr int kMostShared = 220 * 1024;
  return is_hopper(s) && m.h.n_rows > 1 && m.h.n_rows <= kMaxRows && in_whole_rows(m.gate, 8) &&
         in_whole_rows(m.up, 8) && in_whole_rows(m.down, 16) && gate_shared(m) <= kMostShared &&
         down_shared(m) <= kMostShared;
}

bool moe_batch(Stream& s, const MoeView& m, float* y, float* y_s, float* shared_weight) {
  const int n_rows = m.h.n_rows, n_entries = n_rows * m.top_k;
  // Of n entries an expert, (n + 3) / 4 items.
  const int max_items = std::min(n_entries, m.n_experts + n_entries / kColumns);
  const bool shared = shared_in_batch(m);
  ScratchScope scope(s);
  BatchArgs a;
  a.gate = m.gate;
  a.up = m.up;
  a.down = m.down;
  a.top_k = m.top_k;
  a.x_bytes = m.h.k * 2;
  a.act_bytes = column_stride(m.down.k * 2);
  const auto bytes = [&](int64_t rows, int64_t of_row) {
    return reinterpret_cast<uint8_t*>(s.scratch(DType::U8, {rows, of_row}).data);
  };
  auto* items = reinterpret_cast<int4*>(bytes(max_items, sizeof(int4)));
  auto* entries = s.scratch(DType::I32, {n_entries}).as<int32_t>();
  uint8_t *x = bytes(n_rows, a.x_bytes), *shared_x = shared ? bytes(n_rows, a.x_bytes) : nullptr;
  a.act = bytes(n_entries, a.act_bytes);
  a.items = items;
  a.entries = entries;
  a.x = x;
  a.y = y;
  a.n_rows = n_rows;
  if (shared) {
    a.shared_gate = m.shared_gate;
    a.shared_up = m.shared_up;
    a.shared_down = m.shared_down;
    a.shared_x = shared_x;
    a.shared_act = bytes(n_rows, m.shared_down.k * 2);
    a.shared_y = y_s;
  }
  launch(s, moe_items_kernel, dim3(static_cast<unsigned>(1 + n_rows)), kSortThreads, 0, 1, m, items,
         max_items, entries, x, shared_x, a.x_bytes, shared_weight);
  const int groups = ceil_div(n_rows, kSharedRows);
  const auto run = [&](void (*kernel)(BatchArgs), int n_tiles, int tiles_per_block, int shared_blocks,
                       int memory) {
    a.tiles_per_block = tiles_per_block;
    const int x_blocks = ceil_div(n_tiles, tiles_per_block);
    a.shared_slots = shared ? ceil_div(shared_blocks, x_blocks) : 0;
    launch(s, kernel,
           dim3(static_cast<unsigned>(x_blocks), static_cast<unsigned>(a.shared_slots + max_items)), kThreads,
           static_cast<size_t>(std::max(memory, shared ? kSharedMemory + kSharedMemory / 4 : 0)), 1, a);
  };
  const bool few = n_entries <= 128;  // shorter blocks, so that there are enough of them
  run(moe_batch_gate_up_kernel, m.gate.n / 8, few ? 8 : 16,
      ceil_div(ceil_div(m.shared_gate.n, 8) * groups, kTeams), gate_shared(m));
  run(moe_batch_down_kernel, m.down.n / 16, few ? 16 : 32,
      ceil_div(ceil_div(m.shared_down.n, 16) * groups, kWarps), down_shared(m));
  return shared;
}

}  // namespace quern::cuda
