// A byte-level BPE vocabulary as plain data, whatever file it came from. Two readers fill it: the one for
// tokenizer.json below, and the GGUF reader from `tokenizer.ggml.*`.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/pretokenizer.h"

namespace quern {

// A token that is not made by merges: its text is looked for in the input before anything else.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;      // a control token: left out of plain answers
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // … and after it
  bool single_word = false;  // only between word boundaries
  bool normalized = false;   // looked for after normalisation
};

struct TokenizerSpec {
  struct Merge {
    int32_t left = 0, right = 0, result = 0;
  };
  std::string name;                 // of the file, for messages
  std::vector<std::string> tokens;  // the bytes of each ordinary token by id; empty: none has this id
  std::vector<Merge> merges;        // first is best
  std::vector<AddedToken> added;
  SplitPattern pattern = SplitPattern::Qwen2;
  bool nfc = false;
};

// Reads the text of a tokenizer.json. A normaliser, pre-tokenizer, model or decoder other than Qwen's is an
// Error that names it; so is a vocabulary that contradicts itself.
TokenizerSpec read_tokenizer_json(std::string_view json, std::string name);

// Vocabulary files spell bytes as printable characters (GPT-2's alphabet: 'Ġ' is a space). The bytes of such
// a spelling, or nothing where it holds a character outside the alphabet.
std::optional<std::string> bytes_of_spelling(std::string_view spelling);

// The spelling of bytes: the inverse.
std::string spelling_of_bytes(std::string_view bytes);
// The regular expression a tokenizer.json spells the pattern with.
std::string_view pattern_text(SplitPattern pattern);

// Fills spec.merges from pairs of spellings, best first. Throws Error where a part or the result is no token.
void add_merges(TokenizerSpec& spec, std::span<const std::pair<std::string_view, std::string_view>> merges);
// The same from "left right" lines.
void add_merges(TokenizerSpec& spec, std::span<const std::string> lines);

}  // namespace quern
