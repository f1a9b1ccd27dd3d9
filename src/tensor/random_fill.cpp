#include "tensor/random_fill.h"

#include <fstream>
#include <string>

#include "base/check.h"
#include "tensor/random_value.h"

namespace quern {

void random_fill(Stream& s, Tensor t, Fill fill, float amplitude, uint64_t seed) {
  QUERN_CHECK(t.packed(), "random_fill of a column slice");
  if constexpr (kHasCuda) {
    if (s.device().type == DeviceType::Cuda) return cuda::random_fill(s, t, fill, amplitude, seed);
  }
  const int64_t n = fill == Fill::F32 ? t.bytes() / 4 : fill == Fill::BF16 ? t.bytes() / 2 : t.bytes();
  s.pool().parallel_for(n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) put_random(t.data, i, fill, amplitude, seed);
  });
}

DeviceMemory device_memory([[maybe_unused]] Device device) {
  if constexpr (kHasCuda) {
    if (device.type == DeviceType::Cuda) return cuda::device_memory(device);
  }
  DeviceMemory memory;
  std::ifstream lines("/proc/meminfo");
  int64_t kib = 0;
  for (std::string key, unit; lines >> key >> kib; std::getline(lines, unit)) {
    if (key == "MemTotal:") memory.total = kib * 1024;
    if (key == "MemAvailable:") memory.free = kib * 1024;
  }
  return memory;
}

}  // namespace quern
