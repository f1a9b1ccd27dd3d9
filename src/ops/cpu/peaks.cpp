#include "ops/cpu/peaks.h"

#include <atomic>
#include <chrono>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/peaks.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace quern::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

float SumFloats(const float* p, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto a = hn::Zero(d), b = hn::Zero(d), c = hn::Zero(d), e = hn::Zero(d);
  for (int64_t i = 0; i + 4 * lanes <= n; i += 4 * lanes) {
    a = hn::Add(a, hn::LoadU(d, p + i));
    b = hn::Add(b, hn::LoadU(d, p + i + lanes));
    c = hn::Add(c, hn::LoadU(d, p + i + 2 * lanes));
    e = hn::Add(e, hn::LoadU(d, p + i + 3 * lanes));
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(a, b), hn::Add(c, e))));
}

// Ten chains hide the latency of two units. They start apart: compilers see that equal ones stay equal, and
// keep one. Returns the operations done.
int64_t FmaLoop(int64_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.999f), y = hn::Set(d, 0.001f);
  auto a = hn::Set(d, *sink), b = hn::Add(a, y), c = hn::Add(b, y), e = hn::Add(c, y), f = hn::Add(e, y),
       g = hn::Add(f, y), h = hn::Add(g, y), i = hn::Add(h, y), j = hn::Add(i, y), k = hn::Add(j, y);
  for (int64_t r = 0; r < rounds; ++r) {
    a = hn::MulAdd(a, x, y);
    b = hn::MulAdd(b, x, y);
    c = hn::MulAdd(c, x, y);
    e = hn::MulAdd(e, x, y);
    f = hn::MulAdd(f, x, y);
    g = hn::MulAdd(g, x, y);
    h = hn::MulAdd(h, x, y);
    i = hn::MulAdd(i, x, y);
    j = hn::MulAdd(j, x, y);
    k = hn::MulAdd(k, x, y);
  }
  a = hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)),
              hn::Add(hn::Add(f, g), hn::Add(hn::Add(h, i), hn::Add(j, k))));
  *sink = hn::GetLane(hn::SumOfLanes(d, a));
  return rounds * 20 * static_cast<int64_t>(hn::Lanes(d));
}

}  // namespace
}  // namespace quern::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quern {
HWY_EXPORT(SumFloats);
HWY_EXPORT(FmaLoop);

namespace cpu {
namespace {
double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}
}  // namespace

double measure_read(ThreadPool& pool, const void* data, int64_t bytes) {
  const auto* p = static_cast<const float*>(data);
  const int64_t n = bytes / 4;
  std::atomic<float> sink{0};
  const auto sum = HWY_DYNAMIC_DISPATCH(SumFloats);
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(n, 65536, [&](int64_t begin, int64_t end) {
    sink.store(sum(p + begin, end - begin), std::memory_order_relaxed);
  });
  return static_cast<double>(bytes) / seconds_since(start);
}

double measure_fma(ThreadPool& pool, double seconds) {
  std::atomic<int64_t> operations{0};
  const auto loop = HWY_DYNAMIC_DISPATCH(FmaLoop);
  const auto start = std::chrono::steady_clock::now();
  pool.parallel_for(pool.size(), 1, [&](int64_t, int64_t) {
    float sink = 1;
    int64_t done = 0;
    while (seconds_since(start) < seconds) done += loop(100000, &sink);
    operations += sink > 0 ? done : done + 1;
  });
  return static_cast<double>(operations.load()) / seconds_since(start);
}

}  // namespace cpu
}  // namespace quern
#endif
