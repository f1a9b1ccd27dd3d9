// What this machine can do at most, measured with the pool's threads: the two rates the CPU ops are held to.
#pragma once

#include <cstdint>

#include "base/thread_pool.h"

namespace quern::cpu {

// Bytes per second of summing `bytes` of memory at `data` once.
double measure_read(ThreadPool& pool, const void* data, int64_t bytes);

// Floating-point operations per second (two a fused multiply-add) of a loop that only multiplies and adds
// registers, for about `seconds`.
double measure_fma(ThreadPool& pool, double seconds);

}  // namespace quern::cpu
