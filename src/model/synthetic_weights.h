// Random weights made where they lie, so that a benchmark runs any geometry without a file: the full one with 4-bit
// experts takes 75 GB and no time to load.
#pragma once

#include <cstdint>
#include <string>

#include "model/weights.h"

namespace quern {

enum class SyntheticType : uint8_t { BF16, FP8, NVFP4, Q4_0 };
// "bf16", "fp8", "nvfp4" or "q4"; anything else is an Error naming the option.
SyntheticType parse_synthetic_type(const std::string& option, const std::string& name);

struct SyntheticWeightOptions {
  SyntheticType experts = SyntheticType::NVFP4;  // the routed ones
  SyntheticType dense = SyntheticType::FP8;      // every other matrix but the router; BF16 or FP8
  int64_t table_rows = int64_t{1} << 24;         // of the n-gram table, FP8, in host memory
  uint64_t seed = 1;
};

// What synthetic_weights will hold, without making any of it: on the device, and of the n-gram table in host memory.
struct SyntheticBytes {
  int64_t device = 0, table = 0;
};
SyntheticBytes synthetic_bytes(const Config& config, const SyntheticWeightOptions& options);

ModelWeights synthetic_weights(const Config& config, const SyntheticWeightOptions& options, Stream& stream);

}  // namespace quern
