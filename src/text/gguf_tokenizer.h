// The tokenizer and the chat template of a GGUF file (`tokenizer.*` keys), both ways.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/gguf.h"
#include "checkpoint/gguf_writer.h"
#include "text/tokenizer_spec.h"

namespace quern {

// Model "gpt2" with pre-tokenizer "qwen2" or "qwen35" (Qwen's, which normalise to NFC); any other is an Error
// that names it. Token types: 3 control, 4 user-defined, 5 unused, 1 ordinary.
TokenizerSpec read_tokenizer_gguf(const GgufFile& file);

// The keys of a tokenizer for a vocabulary of `vocab` rows; ids without a token become unused ones.
void write_tokenizer_gguf(GgufKeys& keys, const TokenizerSpec& spec, int64_t vocab);

// What `tokenizer.json` says of a spec.
Json write_tokenizer_json(const TokenizerSpec& spec);

}  // namespace quern
