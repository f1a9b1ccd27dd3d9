// The CPU ops at the released model's shapes: time, and the share of what the machine can do, measured beside
// each run: bytes per second against a streaming read for few rows, operations per second against a
// multiply-add loop for many. Every line is the median of paired runs.
//
//   bench_ops [--threads N] [--runs N] [--only TEXT]

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/peaks.h"
#include "ops/cpu/simd.h"
#include "ops/delta_net.h"
#include "ops/hyper_connection.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/sampling.h"
#include "ops/sparse_attention.h"
#include "tensor/buffer.h"

namespace quern {
namespace {

int n_threads = 0, n_runs = 7;
std::string only;

// Whether lines that start with `prefix` may be asked for: weights are not filled for nothing.
bool wanted(const std::string& prefix) {
  return prefix.find(only) != std::string::npos || only.find(prefix) != std::string::npos;
}

struct Bench {
  ThreadPool pool{n_threads};
  Stream s{pool};
  OwnedTensor memory{Device{}, DType::U8, {1, int64_t{512} << 20}};
  std::mt19937_64 random{1};

  Bench() { std::memset(memory.tensor.data, 1, static_cast<size_t>(memory.tensor.bytes())); }

  double seconds(const std::function<void()>& fn) {
    const auto start = std::chrono::steady_clock::now();
    fn();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  static double median(std::vector<double> v) {
    std::nth_element(v.begin(), v.begin() + static_cast<int64_t>(v.size() / 2), v.end());
    return v[v.size() / 2];
  }
  // `bytes` read and `flops` done by one call of fn; 0 leaves the column out.
  void line(const std::string& what, double bytes, double flops, const std::function<void()>& fn) {
    if (what.find(only) == std::string::npos) return;
    fn();
    std::vector<double> time, read, fma;
    for (int i = 0; i < n_runs; ++i) {
      const double rate = bytes > 0 ? cpu::measure_read(pool, memory.tensor.data, memory.tensor.bytes()) : 0;
      const double peak = flops > 0 ? cpu::measure_fma(pool, 0.05) : 0;
      const double t = seconds(fn);
      time.push_back(t);
      if (bytes > 0) read.push_back(bytes / t / rate);
      if (flops > 0) fma.push_back(flops / t / peak);
    }
    const double t = median(time);
    std::string text = fmt::format("{:<44} {:>10.1f} us", what, t * 1e6);
    if (bytes > 0)
      text += fmt::format("  {:>6.2f} GB/s = {:>3.0f} % of a read", bytes / t / 1e9, median(read) * 100);
    if (flops > 0)
      text += fmt::format("  {:>6.1f} GFLOP/s = {:>3.0f} % of the peak", flops / t / 1e9, median(fma) * 100);
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  std::vector<OwnedTensor> kept;
  Tensor floats(std::initializer_list<int64_t> shape) {
    kept.emplace_back(Device{}, DType::F32, shape);
    const Tensor t = kept.back().tensor;
    std::uniform_real_distribution<float> u(-1, 1);
    for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = u(random);
    return t;
  }
  // Random bytes with exponents kept small: codes of any format. Plain numbers get an exponent that keeps
  // them away from the subnormal ones, which these processors multiply a hundred times slower and models do
  // not have.
  Weight weight(DType dtype, int64_t n, int64_t k) {
    kept.emplace_back(Device{}, dtype, std::initializer_list<int64_t>{n, k});
    Weight w;
    w.data = kept.back().tensor;
    auto* words = w.data.as<uint64_t>();
    const uint64_t mask = dtype == DType::F8E4M3 ? 0x3b3b3b3b3b3b3b3bull : 0x3bff3bff3bff3bffull;
    const uint64_t floor = dtype == DType::BF16 || dtype == DType::F16 ? 0x2000200020002000ull
                           : dtype == DType::F32                       ? 0x2000000020000000ull
                           : dtype == DType::F8E4M3                    ? 0x2020202020202020ull
                                                                       : 0;
    for (int64_t i = 0; i < w.data.bytes() / 8; ++i) words[i] = (random() & mask) | floor;
    if (dtype == DType::F4E2M1) {
      kept.emplace_back(Device{}, DType::F8E4M3, std::initializer_list<int64_t>{n, k / 16});
      w.scale = kept.back().tensor;
      std::memset(w.scale.data, 0x30, static_cast<size_t>(w.scale.bytes()));
    }
    if (dtype == DType::F8E4M3) w.scale = floats({(n + 127) / 128, (k + 127) / 128});
    return w;
  }
};

void bench_linear(Bench& b) {
  for (const DType dtype :
       {DType::BF16, DType::F16, DType::F32, DType::F8E4M3, DType::F4E2M1, DType::Q8_0, DType::Q4_0,
        DType::Q4_K, DType::Q5_K, DType::Q6_K, DType::Q3_K, DType::Q2_K, DType::IQ4_NL, DType::IQ4_XS,
        DType::MXFP4, DType::NVFP4, DType::IQ3_S, DType::IQ2_XXS}) {
    if (!wanted(fmt::format("linear {} [10240, 2560]", name(dtype)))) continue;
    // Weights of 400 MB in all, so that a step reads them from memory.
    const int64_t n = 10240, k = 2560, bytes = n * row_bytes(dtype, k);
    const auto copies = std::max<int64_t>(1, (int64_t{400} << 20) / bytes);
    std::vector<Weight> weights;
    for (int64_t i = 0; i < copies; ++i) weights.push_back(b.weight(dtype, n, k));
    const Tensor x = b.floats({512, k}), y = b.floats({512, n});
    for (const int64_t rows : {1, 2, 4, 8}) {
      b.line(fmt::format("linear {} [10240, 2560], {} rows", name(dtype), rows),
             static_cast<double>(copies * bytes), 0, [&] {
               for (const Weight& w : weights)
                 linear(b.s, y.slice_rows(0, rows), x.slice_rows(0, rows), w, rows);
             });
    }
    for (const int64_t rows : {64, 512}) {
      b.line(fmt::format("linear {} [10240, 2560], {} rows", name(dtype), rows), 0,
             2.0 * static_cast<double>(rows * n * k),
             [&] { linear(b.s, y.slice_rows(0, rows), x.slice_rows(0, rows), weights[0], 0); });
    }
    b.kept.clear();
  }
}

void bench_mixer(Bench& b) {
  if (!wanted("hc_mix")) return;
  const int64_t H = 2560, R = 320;
  MixerWeights w{b.floats({4 * H}), b.weight(DType::BF16, R, 4 * H), b.weight(DType::BF16, 4 * H, R),
                 b.weight(DType::BF16, 4, 4 * H)};
  const Tensor x = b.floats({512, 4 * H}), h = b.floats({512, H}), inj = b.floats({512, 4});
  for (const int64_t rows : {1, 8, 512}) {
    b.line(
        fmt::format("hc_mix, {} rows", rows), 0, 2.0 * static_cast<double>(rows * (2 * R + 4) * 4 * H), [&] {
          hc_mix(b.s, h.slice_rows(0, rows), inj.slice_rows(0, rows), x.slice_rows(0, rows), w, 4, 1e-6f, 0);
        });
  }
  b.kept.clear();
}

void bench_moe(Bench& b) {
  for (const DType dtype : {DType::BF16, DType::Q4_K}) {
    if (!wanted(fmt::format("moe {}", name(dtype)))) continue;
    const int64_t H = 2560, I = 640, E = 64, K = 10;
    const int64_t I_down = dtype == DType::BF16 ? I : 768;  // Q4_K needs whole blocks of 256
    MoeWeights w;
    w.router = b.weight(DType::BF16, E, H);
    const auto experts = [&](int64_t n, int64_t k) {
      ExpertWeights e{.items = {}, .packed = {}, .global_scales = {}, .n_experts = E, .n = n, .k = k};
      for (int64_t i = 0; i < E; ++i) e.items.push_back(b.weight(dtype, n, k));
      return e;
    };
    w.gate = experts(I_down, H);
    w.up = experts(I_down, H);
    w.down = experts(H, I_down);
    w.shared_gate = b.weight(DType::BF16, I, H);
    w.shared_up = b.weight(DType::BF16, I, H);
    w.shared_down = b.weight(DType::BF16, H, I);
    w.shared_expert_gate = b.weight(DType::BF16, 1, H);
    w.top_k = static_cast<int>(K);
    const Tensor x = b.floats({512, 4 * H}), h = b.floats({512, H}), inj = b.floats({512, 4}),
                 p = b.floats({512, K});
    b.kept.emplace_back(Device{}, DType::I32, std::initializer_list<int64_t>{512, K});
    const Tensor ids = b.kept.back().tensor;
    const double expert = 3.0 * static_cast<double>(I_down * row_bytes(dtype, H)), shared = 6.0 * I * H;
    for (const int64_t rows : {1, 8, 512}) {
      std::vector<bool> hit(static_cast<size_t>(E));
      for (int64_t t = 0; t < rows; ++t)
        for (int64_t j = 0; j < K; ++j) {
          const auto e = static_cast<int32_t>((b.random() % 6) + static_cast<uint64_t>(j) * 6);
          ids.row<int32_t>(t)[j] = e;
          hit[static_cast<size_t>(e)] = true;
        }
      const auto n_hit = std::count(hit.begin(), hit.end(), true);
      const double flops = 6.0 * static_cast<double>(rows * (K * I_down + I) * H);
      b.line(fmt::format("moe {}, {} rows, {} experts", name(dtype), rows, n_hit),
             rows < 64 ? static_cast<double>(n_hit) * expert + shared : 0, rows < 64 ? 0 : flops, [&] {
               moe(b.s, x.slice_rows(0, rows), inj.slice_rows(0, rows), h.slice_rows(0, rows),
                   ids.slice_rows(0, rows), p.slice_rows(0, rows), w, rows < 64 ? rows : 0);
             });
    }
    b.kept.clear();
  }
}

// A batch of one sequence at `position` with `rows` rows.
struct OneSequence {
  std::vector<int32_t> ids, windows, positions, segment_of, pages;
  Segment segment;
  BatchView view;
  OneSequence(int64_t rows, int64_t position, Role role) {
    ids.assign(static_cast<size_t>(rows), 0);
    windows.assign(static_cast<size_t>(rows) * 3, 0);
    segment_of.assign(static_cast<size_t>(rows), 0);
    for (int64_t i = 0; i < rows; ++i) positions.push_back(static_cast<int32_t>(position + i));
    for (int64_t i = 0; i <= (position + rows) / kPageTokens; ++i) pages.push_back(static_cast<int32_t>(i));
    segment = {.row = 0,
               .n_rows = static_cast<int32_t>(rows),
               .slot = 0,
               .position = static_cast<int32_t>(position),
               .n_pending = 0,
               .page_table = 0,
               .role = role};
    view = {.n_rows = rows,
            .n_decode_rows = role == Role::Decode ? rows : 0,
            .n_segments = 1,
            .max_tokens = position + rows,
            .ids = ids.data(),
            .windows = windows.data(),
            .positions = positions.data(),
            .segment_of = segment_of.data(),
            .segments = &segment,
            .page_tables = pages.data()};
  }
};

void bench_delta_net(Bench& b) {
  if (!wanted("delta_net")) return;
  const DeltaNetShape shape{.n_k = 16, .n_v = 48, .d_k = 128, .d_v = 128};
  const int64_t C = shape.conv_channels(), V = 6144;
  const DeltaNetWeights w{b.floats({C, 4}), b.floats({48}), b.floats({48}), b.floats({128})};
  const DeltaNetState state{b.floats({1, 48, 128, 128}), b.floats({1, kConvRing, C}),
                            b.floats({1, kMaxDrafts + 1, shape.pending_width()})};
  for (int i = 0; i < 48; ++i) w.decay.as<float>()[i] = -1;
  const Tensor y = b.floats({512, V}), qkv = b.floats({512, C}), z = b.floats({512, V}),
               a = b.floats({512, 48}), beta = b.floats({512, 48});
  for (const int64_t rows : {1, 512}) {
    const OneSequence one(rows, 100, rows == 1 ? Role::Decode : Role::Prefill);
    b.line(fmt::format("delta_net, {} rows", rows), 0, 7.0 * static_cast<double>(rows * 48 * 128 * 128), [&] {
      delta_net(b.s, y.slice_rows(0, rows), qkv.slice_rows(0, rows), z.slice_rows(0, rows),
                a.slice_rows(0, rows), beta.slice_rows(0, rows), shape, w, state, one.view, 1e-6f);
    });
  }
  b.kept.clear();
}

void bench_attention(Bench& b) {
  if (!wanted("qsa_select at") && !wanted("qsa_attend at")) return;
  const QsaShape shape{.n_heads = 24,
                       .n_kv = 2,
                       .d_head = 256,
                       .d_rope = 64,
                       .index_heads = 4,
                       .d_index = 128,
                       .budget_blocks = 512,
                       .rope_theta = 1e7};
  for (const int64_t position : {2000, 32000}) {
    const int64_t pages = (position + 600) / kPageTokens;
    b.kept.emplace_back(Device{}, DType::BF16, std::initializer_list<int64_t>{pages, 2, kPageTokens, 256});
    const Tensor k = b.kept.back().tensor;
    b.kept.emplace_back(Device{}, DType::BF16, std::initializer_list<int64_t>{pages, 2, kPageTokens, 256});
    const QsaCache cache{k, b.kept.back().tensor, b.floats({pages, kPageBlocks, 128}),
                         b.floats({1, kConvRing, 128})};
    const Tensor q = b.floats({512, 24 * 512}), y = b.floats({512, 24 * 256}), qi = b.floats({512, 512});
    b.kept.emplace_back(Device{}, DType::I32, std::initializer_list<int64_t>{512, 512});
    const Tensor blocks = b.kept.back().tensor;
    b.kept.emplace_back(Device{}, DType::I32, std::initializer_list<int64_t>{512, 1});
    const Tensor counts = b.kept.back().tensor;
    for (const int64_t rows : {1, 256}) {
      const OneSequence one(rows, position, rows == 1 ? Role::Decode : Role::Prefill);
      const Selection selection{blocks.slice_rows(0, rows), counts.slice_rows(0, rows)};
      const double visible = std::min(2048.0, static_cast<double>(position));
      b.line(fmt::format("qsa_select at {}, {} rows", position, rows), 0,
             position > 2048 ? static_cast<double>(rows * position / 4 * 4 * 128 * 2) : 0,
             [&] { qsa_select(b.s, selection, qi.slice_rows(0, rows), shape, cache, one.view); });
      b.line(fmt::format("qsa_attend at {}, {} rows", position, rows), 0,
             static_cast<double>(rows) * visible * 24 * 256 * 4, [&] {
               qsa_attend(b.s, y.slice_rows(0, rows), q.slice_rows(0, rows), selection, shape, cache,
                          one.view);
             });
    }
    b.kept.clear();
  }
}

void bench_sampling(Bench& b) {
  if (!wanted("sample of 248320")) return;
  const Tensor logits = b.floats({1, 248320});
  for (int64_t i = 0; i < 248320; ++i) logits.as<float>()[i] *= 10;
  b.kept.emplace_back(Device{}, DType::I32, std::initializer_list<int64_t>{1, 1});
  const Tensor ids = b.kept.back().tensor;
  const auto line = [&](const char* what, SamplingRow row) {
    b.line(fmt::format("sample of 248320, {}", what), 0, 0, [&] { sample(b.s, ids, logits, &row, 1); });
  };
  line("greedy", {.temperature = 0});
  line("all ids", {});
  line("top-k 20, top-p 0.95", {.top_p = 0.95f, .top_k = 20});
  line("top-p 0.95", {.top_p = 0.95f});
  line("min-p 0.05", {.min_p = 0.05f});
  b.kept.clear();
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  using namespace quern;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads")
      n_threads = std::atoi(argv[i + 1]);
    else if (flag == "--runs")
      n_runs = std::max(1, std::atoi(argv[i + 1]));
    else if (flag == "--only")
      only = argv[i + 1];
    else
      return fmt::print(stderr, "bench_ops: unknown option {}\n", flag), 2;
  }
  Bench b;
  fmt::print("{} threads, {}; a read reaches {:.1f} GB/s, multiply-adds {:.0f} GFLOP/s\n", b.pool.size(),
             simd::target(), cpu::measure_read(b.pool, b.memory.tensor.data, b.memory.tensor.bytes()) / 1e9,
             cpu::measure_fma(b.pool, 0.2) / 1e9);
  bench_linear(b);
  bench_mixer(b);
  bench_moe(b);
  bench_delta_net(b);
  bench_attention(b);
  bench_sampling(b);
}
