// tokenizer_config.json: what a Hugging Face folder says of its tokenizer beside tokenizer.json.
#pragma once

#include <filesystem>

#include "base/json.h"

namespace quern {

// Null where the folder has none. Throws Error naming the file and a key that wants of a tokenizer what ours does not
// do: tokens or a space added to every text, or control tokens split into bytes.
Json read_tokenizer_config(const std::filesystem::path& folder);

}  // namespace quern
