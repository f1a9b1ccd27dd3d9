#include "text/detokenizer.h"

#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace quern {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_ && tokenizer_->is_special(id)) return {};
  const std::string_view bytes = tokenizer_->token_bytes(id);
  if (held_.empty() && is_valid_utf8(bytes)) return std::string(bytes);
  held_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    const Utf8Char c = decode_utf8(held_, at);
    if (c.truncated) break;
    append_utf8(out, c.valid ? c.code_point : unicode::kReplacement);
    at += c.size;
  }
  held_.erase(0, at);
  return out;
}

std::string Detokenizer::finish() {
  std::string out = repair_utf8(held_);
  held_.clear();
  return out;
}

}  // namespace quern
