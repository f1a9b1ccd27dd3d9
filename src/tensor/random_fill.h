// Random contents for benchmarks: weights made where they lie, so that the full geometry runs without a file.
//
// A value depends on (seed, index) alone. On the CPU as on CUDA.
#pragma once

#include <cstdint>

#include "tensor/stream.h"

namespace quern {

enum class Fill : uint8_t {
  F32,    // uniform in ±amplitude
  BF16,   // the same, rounded
  E4M3,   // the same, rounded
  Bytes,  // any
};

void random_fill(Stream& s, Tensor t, Fill fill, float amplitude, uint64_t seed);

namespace cuda {
void random_fill(Stream& s, Tensor t, Fill fill, float amplitude, uint64_t seed);
}

// Bytes of the device's memory that are free, and all of it. On the CPU free is what programs can have without swapping.
struct DeviceMemory {
  int64_t free = 0, total = 0;
};
DeviceMemory device_memory(Device device);

namespace cuda {
DeviceMemory device_memory(Device device);
}

}  // namespace quern
