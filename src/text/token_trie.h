// Tokens by their bytes: a prefix tree laid out in the order of a depth-first walk, so that walking it is a
// scan and leaving out a subtree is a jump. Several tokens may share a string.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace quern {

class TokenTrie {
 public:
  struct Node {
    uint32_t skip;       // the first node after this one's subtree
    uint32_t ids_begin;  // this node's tokens are ids()[ids_begin] up to the next node's ids_begin
    uint16_t depth;      // of the byte: 1 for the first
    uint8_t byte;        // the edge into this node
  };
  using Entry = std::pair<std::string_view, int32_t>;  // bytes (not empty, at most 65535), id

  TokenTrie() { nodes_.push_back({0, 0, 0, 0}); }
  explicit TokenTrie(std::vector<Entry> entries);  // in any order

  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
  const Node& node(uint32_t i) const { return nodes_[i]; }
  std::span<const int32_t> ids(uint32_t i) const {
    return {ids_.data() + nodes_[i].ids_begin, ids_.data() + nodes_[i + 1].ids_begin};
  }
  // The tokens below node i, itself left out.
  std::span<const int32_t> ids_below(uint32_t i) const {
    return {ids_.data() + nodes_[i + 1].ids_begin, ids_.data() + nodes_[nodes_[i].skip].ids_begin};
  }
  int max_depth() const { return max_depth_; }

 private:
  std::vector<Node> nodes_;  // one more at the end, for ids_begin
  std::vector<int32_t> ids_;
  int max_depth_ = 0;
};

}  // namespace quern
