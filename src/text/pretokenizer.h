// Splits text into the pieces that byte-pair merges may not cross, as the Qwen tokenizers' regular
// expressions do:
//
//   Qwen2:  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+
//           |\s+(?!\S)|\s+
//   Qwen35: the same with [\p{L}\p{M}]+ for the letters and \p{M} taken out of the symbols
//
// No regex engine: one pass, constant stack, every character looked at a bounded number of times. Classes are
// Unicode 14.0's; under (?i) the long s (U+017F) is an s.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quern {

enum class SplitPattern : uint8_t { Qwen2, Qwen35 };

// The end of the piece that starts at text[at]; at < text.size(). `text` must be valid UTF-8. A caller that
// walks the text from piece to piece spends linear time.
size_t next_piece(SplitPattern pattern, std::string_view text, size_t at);

}  // namespace quern
