// Text ⇄ token ids: byte-level BPE as the Qwen tokenizers do it.
//
//   encode: repair UTF-8 → cut at added tokens → per stretch: NFC, split (pretokenizer.h), merge each piece's
//   bytes merge:  while some neighbouring pair has a merge, apply the best-ranked one, leftmost first
//
// A piece that is itself a token is found by one look-up; others of n bytes cost O(n log n). The object is
// immutable but for memoised facts, and may be used from any number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer_spec.h"

namespace quern {

enum class ControlTokens : uint8_t {
  Recognise,  // the text of an added token becomes its id
  AsText,     // `<|im_end|>` is eleven ordinary characters
};

// A stretch of a longer text and what to make of control tokens in it.
struct TextPiece {
  std::string_view text;
  ControlTokens mode = ControlTokens::AsText;
};

class Tokenizer {
 public:
  // Throws Error where the vocabulary lacks a byte, contradicts itself, or wants what is not supported.
  explicit Tokenizer(TokenizerSpec spec);
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json);
  // Of a model: a Hugging Face folder, a .safetensors file in one, its tokenizer.json, a GGUF file or a
  // folder of GGUFs.
  static Tokenizer from_model(const std::filesystem::path& model);

  // Invalid UTF-8 is repaired to U+FFFD first.
  std::vector<int32_t> encode(std::string_view text, ControlTokens mode) const;
  void encode(std::string_view text, ControlTokens mode, std::vector<int32_t>& out) const;  // appends
  // The pieces as one text, so that merges cross their borders as they would in the whole; an added token is
  // recognised only where all of its characters come from Recognise pieces that touch. A chat template's own
  // markup and what users wrote are such pieces.
  void encode(std::span<const TextPiece> pieces, std::vector<int32_t>& out) const;

  // Valid UTF-8: bytes that form no character become U+FFFD. `skip_special` leaves control tokens out. Ids
  // without a token are skipped.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // Raw bytes, an added token's spelling; empty for ids without a token.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;                                     // an added token marked special
  bool is_added(int32_t id) const;                                       // any added token
  std::optional<int32_t> find_special(std::string_view spelling) const;  // any added token's id
  int32_t size() const {
    return static_cast<int32_t>(begin_.size()) - 1;
  }  // one past the highest id with a token

 private:
  struct Merged {
    uint32_t rank, id;
  };
  enum class Whole : uint8_t { Unknown, Yes, No };  // do a token's bytes merge to the token?
  static constexpr uint32_t kNone = UINT32_MAX;

  Merged find_merge(uint32_t left, uint32_t right) const;  // {kNone, kNone}: there is none
  uint32_t find_token(std::string_view bytes) const;       // an ordinary token, or kNone
  const AddedToken* match_added(std::string_view text, size_t at) const;
  void encode_stretch(std::string_view text, std::vector<int32_t>& out) const;
  void encode_piece(std::string_view bytes, std::vector<int32_t>& out) const;
  void merge_short(std::string_view bytes, std::vector<int32_t>& out) const;
  void merge_long(std::string_view bytes, std::vector<int32_t>& out) const;

  std::string bytes_;              // of all tokens, id after id
  std::vector<uint32_t> begin_;    // [size() + 1] into bytes_
  std::vector<uint8_t> kind_;      // [size()]: 0 ordinary or none, 1 added, 2 special
  std::vector<AddedToken> added_;  // sorted by text
  bool starts_added_[256] = {};    // bytes that some added token starts with
  SplitPattern pattern_;
  bool nfc_;
  uint32_t byte_token_[256];
  // Open addressing, a power of two of slots, at most half full.
  struct MergeSlot {
    uint64_t pair;  // left << 32 | right
    Merged merged;
  };
  std::vector<MergeSlot> merges_;
  std::vector<uint32_t> token_slots_;  // ids
  size_t longest_token_ = 0;
  std::unique_ptr<std::atomic<Whole>[]> whole_;  // [size()], filled as pieces are met
};

}  // namespace quern
