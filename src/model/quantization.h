// How a Hugging Face folder says that its weights are quantised: quantization_config of config.json, or ModelOpt's
// hf_quant_config.json. And whether its tensors are what that says.
//
//   quant_method "fp8"        E4M3 with a scale per 128 × 128 block, activations "dynamic": the official release
//   quant_method "modelopt"   quant_algo NVFP4 (a scale per 16), FP8 (a scale a matrix), FP8_PB_WO (one per
//                             128 × 128 block) or MIXED_PRECISION, where quantized_layers says it module by module
//
// What only tells a runtime how to round activations or the cache (input_activations, kv_cache_scheme) has to be known and
// is not applied: ours are wider. Any other key that is set, to more than false or nothing, is an Error, as it may
// change numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config_section.h"

namespace quern {

enum class Quantization : uint8_t { None, Fp8Block, ModelOpt };
// How one matrix is stored.
enum class StoredAs : uint8_t { Fp8Block, Fp8Whole, Nvfp4 };

struct QuantizationRules {
  Quantization kind = Quantization::None;
  std::string place;              // "config.json: quantization_config"
  std::optional<StoredAs> whole;  // of every quantised matrix; empty: layer by layer, or NVFP4 beside FP8
  std::vector<std::pair<std::string, StoredAs>> layers;  // by module; * is any text
  std::vector<std::string> ignored;                      // modules that are not quantised
};

// Of the object itself. Throws Error naming the key and the value.
QuantizationRules parse_quantization(const Section& q);
// Of a folder's hf_quant_config.json; kind None where there is no such file.
QuantizationRules read_quant_config_file(const std::filesystem::path& folder);
// Throws Error naming a quantised tensor that the rules do not allow. `fp8_table`: whether the config says elsewhere that
// the n-gram table is FP8.
void check_stored_weights(const Checkpoint& checkpoint, const QuantizationRules& rules, bool fp8_table);

}  // namespace quern
