#include "server/content_logprobs.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"

namespace quern {
namespace {

bool agree(std::string_view a, std::string_view b) {
  const size_t n = std::min(a.size(), b.size());
  return a.substr(0, n) == b.substr(0, n);
}

}  // namespace

void ContentLogprobs::push(LogprobEntry entry, bool tag) { waiting_.push_back({std::move(entry), tag}); }

void ContentLogprobs::clear() {
  waiting_.clear();
  owed_ = 0;
}

std::vector<LogprobEntry> ContentLogprobs::claim(std::string_view text) {
  const size_t late = std::min(text.size(), owed_);
  owed_ -= late;
  text.remove_prefix(late);
  std::vector<LogprobEntry> claimed;
  while (!text.empty() && !waiting_.empty()) {
    Waiting& first = waiting_.front();
    std::string_view bytes = first.entry.chosen.bytes;
    size_t size = bytes.size();
    if (!agree(bytes, text)) {
      const size_t begin = bytes.find_first_not_of(" \t\r\n");
      if (first.tag || begin == bytes.npos) {
        waiting_.pop_front();
        continue;
      }
      // Newlines at its head were the tag's; else bytes that are no UTF-8 became U+FFFD, which is longer.
      size = agree(bytes.substr(begin), text) ? size - begin : repair_utf8(bytes).size();
    }
    claimed.push_back(std::move(first.entry));
    waiting_.pop_front();
    const size_t n = std::min(size, text.size());
    owed_ = size - n;
    text.remove_prefix(n);
  }
  return claimed;
}

}  // namespace quern
