#include "text/grammar_mask.h"

#include <algorithm>
#include <array>
#include <bit>

#include "base/check.h"
#include "base/utf8.h"

namespace quern {
namespace {

void set_bit(std::vector<uint32_t>& bits, int32_t id) { bits[id >> 5] |= uint32_t{1} << (id & 31); }

// Beyond this many ids a bit mask is smaller.
constexpr size_t kManyIds = 2048;

// Longer tokens are walked; there is a mask for each length up to this.
constexpr int kLongestInSlice = 256;

// The characters of a token if all are in the set, or 0.
int count_chars(std::string_view bytes, const CharSet& set, const std::array<bool, 128>& ascii) {
  int n = 0;
  for (size_t i = 0; i < bytes.size(); ++n) {
    const auto b = static_cast<unsigned char>(bytes[i]);
    if (b < 128) {
      if (!ascii[b]) return 0;
      ++i;
      continue;
    }
    const Utf8Char c = decode_utf8(bytes, i);
    if (!c.valid || !set.contains(c.code_point)) return 0;
    i += c.size;
  }
  return n <= kLongestInSlice ? n : 0;
}

// By bytes: their first eight as a number settle nearly every comparison.
void sort_entries(std::vector<TokenTrie::Entry>& entries) {
  std::vector<std::pair<uint64_t, TokenTrie::Entry>> keyed;
  keyed.reserve(entries.size());
  for (const auto& entry : entries) {
    uint64_t key = 0;
    for (size_t i = 0; i < 8; ++i)
      key = key << 8 | (i < entry.first.size() ? static_cast<unsigned char>(entry.first[i]) : 0);
    keyed.emplace_back(key, entry);
  }
  std::sort(keyed.begin(), keyed.end());
  for (size_t i = 0; i < entries.size(); ++i) entries[i] = keyed[i].second;
}

GrammarVocabulary::Slice make_slice(const std::vector<TokenTrie::Entry>& sorted, const CharSet& set,
                                    size_t words) {
  std::array<bool, 128> ascii;
  for (char32_t c = 0; c < 128; ++c) ascii[c] = set.contains(c);
  std::vector<TokenTrie::Entry> rest;
  std::vector<std::pair<int, int32_t>> inside;  // characters, id
  for (const auto& [bytes, id] : sorted) {
    if (const int n = count_chars(bytes, set, ascii))
      inside.emplace_back(n, id);
    else
      rest.emplace_back(bytes, id);
  }
  GrammarVocabulary::Slice slice;
  slice.rest = TokenTrie(std::move(rest));
  std::sort(inside.begin(), inside.end());
  size_t at = 0;
  for (int count = 1; at < inside.size(); ++count) {
    slice.bits.push_back(count == 1 ? std::vector<uint32_t>(words, 0) : slice.bits.back());
    for (; at < inside.size() && inside[at].first <= count; ++at)
      set_bit(slice.bits.back(), inside[at].second);
  }
  return slice;
}

}  // namespace

GrammarDfa::GrammarDfa(const GrammarAutomaton& automaton) : closure_(automaton, frames_) {
  table_.reserve(kMaxStates * 256);
  clear();
}

void GrammarDfa::clear() {
  table_.clear();
  leaves_.clear();
  items_.clear();
  items_begin_.assign(1, 0);
  index_.assign(1024, kDead);
  hashes_.clear();
  frames_.clear();
}

int32_t GrammarDfa::start(std::span<const int32_t> nodes, int depth) {
  scratch_.clear();
  for (const int32_t node : nodes) scratch_.push_back({node, frames_.bottom(depth)});
  return intern(scratch_, false);
}

int32_t GrammarDfa::intern(std::vector<GrammarItem>& items, bool leaves) {
  if (items.empty() && !leaves) return kDead;
  std::sort(items.begin(), items.end());
  uint64_t hash = leaves;
  for (const GrammarItem& i : items) {
    hash ^= uint64_t(static_cast<uint32_t>(i.node)) << 32 | static_cast<uint32_t>(i.frame);
    hash *= 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  }
  size_t slot = hash & (index_.size() - 1);
  for (; index_[slot] != kDead; slot = (slot + 1) & (index_.size() - 1)) {
    const int32_t s = index_[slot];
    if (hashes_[s] == hash && leaves_[s] == leaves && std::ranges::equal(this->items(s), items)) return s;
  }
  const auto state = static_cast<int32_t>(leaves_.size());
  index_[slot] = state;
  hashes_.push_back(hash);
  items_.insert(items_.end(), items.begin(), items.end());
  items_begin_.push_back(static_cast<uint32_t>(items_.size()));
  leaves_.push_back(leaves);
  // What no item reads is dead: of many items side by side most bytes are, and asking each for each would cost.
  table_.resize(table_.size() + 256, kDead);
  int32_t* row = table_.data() + (static_cast<size_t>(state) << 8);
  for (const GrammarItem& item : items)
    for (const auto& e : closure_.edges(item.node))
      if (e.kind == GrammarAutomaton::EdgeKind::Byte) std::fill(row + e.low, row + e.high + 1, kUnknown);
  if (2 * leaves_.size() > index_.size()) {
    index_.assign(index_.size() * 2, kDead);
    for (size_t s = 0; s < hashes_.size(); ++s) {
      size_t free = hashes_[s] & (index_.size() - 1);
      while (index_[free] != kDead) free = (free + 1) & (index_.size() - 1);
      index_[free] = static_cast<int32_t>(s);
    }
  }
  return state;
}

int32_t GrammarDfa::compute(int32_t state, uint8_t byte) {
  closure_.begin(scratch_);
  for (const GrammarItem& item : items(state)) closure_.read(item, byte);
  const int32_t next = intern(scratch_, closure_.ended());
  table_[static_cast<size_t>(state) << 8 | byte] = next;
  return next;
}

size_t NodeMask::bytes() const {
  return sizeof *this + bits.size() * 4 + ids.size() * 4 +
         (leaving ? leaving->size() * (sizeof(TokenTrie::Node) + 8) : 0);
}

NodeMask compute_node_mask(const GrammarAutomaton& automaton, GrammarDfa& dfa,
                           const GrammarVocabulary& vocabulary, std::span<const int32_t> nodes, int depth,
                           bool with_leaving) {
  using Slice = GrammarAutomaton::Note::Slice;
  NodeMask mask;
  mask.has_leaving = with_leaving;
  for (const int32_t node : nodes)
    for (const auto& e : automaton.edges(node))
      if (e.kind == GrammarAutomaton::EdgeKind::Token) mask.ids.push_back(e.value);
  const TokenTrie* trie = &vocabulary.all();
  const GrammarAutomaton::Note note =
      nodes.size() == 1 ? automaton.notes[nodes[0]] : GrammarAutomaton::Note{};
  switch (note.slice) {
    case Slice::None:
      break;
    case Slice::JsonString:
      mask.base = vocabulary.slice(0).at_most(note.count);
      if (depth == 0 && vocabulary.longest_in_string() > 0) {
        mask.ids = vocabulary.json_string().ids;
        mask.bits = vocabulary.json_string().bits;
        mask.leaving = vocabulary.json_string().leaving;
        mask.has_leaving = true;
        return mask;
      }
      trie = &vocabulary.slice(0).rest;
      break;
    case Slice::Chars: {
      const auto& slice = vocabulary.slice(note.set);
      mask.base = slice.at_most(note.count);
      if (note.exact || note.count >= slice.longest()) trie = &slice.rest;
      break;
    }
    case Slice::Lines:
      mask.base = vocabulary.line_bits();
      trie = &vocabulary.with_line_feed();
      break;
    case Slice::All:
      mask.base = vocabulary.all_bits();
      return mask;
  }
  std::vector<TokenTrie::Entry> leaving;
  walk_trie(*trie, 0, trie->size(), 0, dfa, dfa.start(nodes, depth), [&](uint32_t i, int32_t state) {
    const auto ids = trie->ids(i);
    if (mask.bits.empty()) {
      mask.ids.insert(mask.ids.end(), ids.begin(), ids.end());
      if (mask.ids.size() > kManyIds) {
        mask.bits.assign(vocabulary.words(), 0);
        for (const int32_t id : mask.ids) set_bit(mask.bits, id);
        mask.ids.clear();
      }
    } else {
      for (const int32_t id : ids) set_bit(mask.bits, id);
    }
    if (with_leaving && dfa.leaves(state))
      for (const int32_t id : trie->ids_below(i))
        leaving.emplace_back(vocabulary.bytes(id).substr(trie->node(i).depth), id);
  });
  mask.leaving = std::make_shared<const TokenTrie>(std::move(leaving));
  return mask;
}

GrammarVocabulary::~GrammarVocabulary() = default;

GrammarVocabulary::GrammarVocabulary(const Tokenizer& tokenizer, std::vector<int32_t> end_ids)
    : end_ids_(std::move(end_ids)) {
  const int32_t n = tokenizer.size();
  begin_.push_back(0);
  is_text_.assign(n, 0);
  for (int32_t id = 0; id < n; ++id) {
    bytes_ += tokenizer.token_bytes(id);
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  for (const int32_t id : end_ids_)
    if (id < 0 || id >= n || bytes(id).empty())
      throw Error("grammar: the end token " + std::to_string(id) + " is not in the vocabulary");
  all_bits_.assign(words(), 0);
  line_bits_.assign(words(), 0);
  std::vector<TokenTrie::Entry> all, with_line_feed;
  for (int32_t id = 0; id < n; ++id) {
    const std::string_view b = bytes(id);
    if (tokenizer.is_added(id)) added_.emplace_back(b, id);
    if (b.empty() || b.size() > 65535 || tokenizer.is_added(id)) continue;
    is_text_[id] = 1;
    all.emplace_back(b, id);
    set_bit(all_bits_, id);
    if (b.find('\n') == std::string_view::npos)
      set_bit(line_bits_, id);
    else
      with_line_feed.emplace_back(b, id);
  }
  sort_entries(all);
  for (const CharSet& set : char_slices()) slices_.push_back(make_slice(all, set, words()));
  all_ = TokenTrie(std::move(all));
  with_line_feed_ = TokenTrie(std::move(with_line_feed));

  GrammarSource source;
  source.root = source.rule(source.add_rule("string", source.json_string()));
  const GrammarAutomaton automaton = build_automaton(source, 0);
  GrammarDfa dfa(automaton);
  json_string_ = compute_node_mask(automaton, dfa, *this, {&automaton.json_body, 1}, 0, true);
  int longest = 1;
  auto measure = [&](int32_t id) { longest = std::max(longest, static_cast<int>(bytes(id).size())); };
  for (size_t w = 0; w < json_string_.bits.size(); ++w)
    for (uint32_t b = json_string_.bits[w]; b; b &= b - 1)
      measure(static_cast<int32_t>(w * 32) + std::countr_zero(b));
  for (const int32_t id : json_string_.ids) measure(id);
  for (uint32_t i = 0; i < json_string_.leaving->size(); ++i)
    for (const int32_t id : json_string_.leaving->ids(i)) measure(id);
  longest_in_string_ = longest;
}

bool GrammarVocabulary::is_end(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

std::optional<int32_t> GrammarVocabulary::find_added(std::string_view spelling) const {
  for (const auto& [text, id] : added_)
    if (text == spelling) return id;
  return std::nullopt;
}

std::span<const uint32_t> GrammarVocabulary::Slice::at_most(int count) const {
  if (bits.empty() || count <= 0) return {};
  return bits[std::min<size_t>(static_cast<size_t>(count), bits.size()) - 1];
}

}  // namespace quern
