// A model's own defaults of sampling, from generation_config.json or GGUF keys. Keys we do not use are left alone.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoint.h"

namespace quern {

struct GenerationConfig {
  bool do_sample = true;  // false: greedy
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k;  // 0 or absent: no limit
  std::vector<int32_t> eos_ids;  // a reply ends at any of them; empty: the tokenizer's or the config's
};

// Of a model, a Hugging Face folder, a .safetensors file in one, or what find_gguf() takes: generation_config.json
// of the folder (all defaults where there is none), or GGUF's keys (general.sampling.*, the end tokens of its
// tokenizer and of its n-grams). Throws Error naming file, key, value.
GenerationConfig read_generation_config(const std::filesystem::path& model);
GenerationConfig read_generation_config(const Checkpoint& checkpoint);
GenerationConfig parse_generation_config(const Json& json, const std::string& file);

}  // namespace quern
