#include "text/token_trie.h"

#include <algorithm>

#include "base/check.h"

namespace quern {

TokenTrie::TokenTrie(std::vector<Entry> entries) {
  if (!std::is_sorted(entries.begin(), entries.end())) std::sort(entries.begin(), entries.end());
  std::vector<uint32_t> open;  // the nodes on the path to the last string
  std::string_view last;
  auto close = [&](size_t depth) {
    while (open.size() > depth) {
      nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
      open.pop_back();
    }
  };
  for (const auto& [bytes, id] : entries) {
    QUERN_CHECK(!bytes.empty() && bytes.size() <= 65535, "a token of no or too many bytes in the trie");
    const auto differ = std::mismatch(bytes.begin(), bytes.end(), last.begin(), last.end());
    close(static_cast<size_t>(differ.first - bytes.begin()));
    while (open.size() < bytes.size()) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), static_cast<uint16_t>(open.size()),
                        static_cast<uint8_t>(bytes[open.size() - 1])});
    }
    ids_.push_back(id);
    max_depth_ = std::max(max_depth_, static_cast<int>(bytes.size()));
    last = bytes;
  }
  close(0);
  nodes_.push_back({0, static_cast<uint32_t>(ids_.size()), 0, 0});
}

}  // namespace quern
