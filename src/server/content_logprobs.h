// Log-probabilities wait here for the text they belong to. Tokens come one by one; the parser hands text out later,
// cut elsewhere, and drops what is a tag's: the newlines after </think>, the tags, what became a call, a stop string.
//
//   claim(text) = the tokens whose first byte lies in `text`, in order; tokens in front of it that are no text are gone
//
// So the tokens of a reply, joined, spell its content (of a token that a stop string cuts, a part).
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "server/reply.h"

namespace quern {

class ContentLogprobs {
 public:
  // `tag`: the token is an added one, which the parser may take for markup.
  void push(LogprobEntry entry, bool tag);
  std::vector<LogprobEntry> claim(std::string_view text);
  // What waits is no content.
  void clear();

 private:
  struct Waiting {
    LogprobEntry entry;
    bool tag = false;
  };
  std::deque<Waiting> waiting_;
  size_t owed_ = 0;  // bytes of the last claimed token that are still to come
};

}  // namespace quern
