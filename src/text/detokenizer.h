// Token ids → text as it arrives. A character whose bytes are spread over tokens is held back until it is
// whole; nothing else is. Bytes that form no character become U+FFFD, one for each maximal part of one
// (Unicode 3.9), as soon as that is certain. So the pieces, joined, are Tokenizer::decode of all the ids.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace quern {

class Detokenizer {
 public:
  // The tokenizer must outlive this. `skip_special` leaves control tokens out.
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  std::string push(int32_t id);  // what is certain now; valid UTF-8
  std::string finish();          // the held bytes, repaired; the object is as new afterwards

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;  // the start of a character: at most three bytes
};

}  // namespace quern
