// Expressions are laid down from their ends: lower(e, next) gives the node from which e, then whatever `next`
// does, is matched. Results are shared by (e, next), so expressions that several alternatives end in cost
// once.
#include "text/grammar_automaton.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/check.h"

namespace quern {
namespace {

using Edge = GrammarAutomaton::Edge;
using EdgeKind = GrammarAutomaton::EdgeKind;
using Note = GrammarAutomaton::Note;
using Kind = GrammarSource::Kind;
using Expr = GrammarSource::Expr;
constexpr int32_t kAccept = GrammarAutomaton::kAccept;

// Rules are expanded in place up to so many nodes, and so deep in each other.
constexpr size_t kExpandNodes = 20'000, kExpandDepth = 32;
// Of expressions in each other: what a thread's stack holds, a sanitizer's frames included.
constexpr int kMaxLowerDepth = 1500;

struct ByteRange {
  uint8_t low, high;
};

// Calls fn(ranges, n) for sequences of byte ranges that together are the UTF-8 of [first, last].
template <typename Fn>
void split_utf8(char32_t first, char32_t last, Fn& fn) {
  for (const char32_t limit : {char32_t(0x7F), char32_t(0x7FF), char32_t(0xFFFF)})
    if (first <= limit && limit < last) {
      split_utf8(first, limit, fn);
      split_utf8(limit + 1, last, fn);
      return;
    }
  for (int i = 1; i < 4 && last >= 0x80; ++i) {
    const char32_t mask = (char32_t(1) << 6 * i) - 1;
    if ((first & ~mask) == (last & ~mask)) continue;
    if (first & mask) {
      split_utf8(first, first | mask, fn);
      split_utf8((first | mask) + 1, last, fn);
      return;
    }
    if ((last & mask) != mask) {
      split_utf8(first, (last & ~mask) - 1, fn);
      split_utf8(last & ~mask, last, fn);
      return;
    }
  }
  auto encode = [](char32_t c, uint8_t* b) {
    if (c < 0x80) return b[0] = static_cast<uint8_t>(c), 1;
    const int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int i = n - 1; i > 0; --i, c >>= 6) b[i] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    b[0] = static_cast<uint8_t>((0xF00 >> n) | c);
    return n;
  };
  uint8_t a[4], b[4];
  const int n = encode(first, a);
  encode(last, b);
  std::array<ByteRange, 4> ranges{};
  for (int i = 0; i < n; ++i) ranges[i] = {a[i], b[i]};
  fn(ranges, n);
}

// Trees of names that share what is equal; a place is a tree's node and its node in the automaton.
struct NameTrees {
  static constexpr int32_t kNone = -1;
  struct Place {
    int32_t node = -1;
    std::map<uint8_t, int32_t> next;
    std::vector<int32_t> rests;  // where a name ends
  };
  const Place& operator[](int32_t i) const { return places[i]; }
  int32_t child(int32_t of, uint8_t byte) const {
    if (of == kNone) return kNone;
    const auto at = places[of].next.find(byte);
    return at == places[of].next.end() ? kNone : at->second;
  }
  std::vector<Place> places;
};

class Builder {
 public:
  Builder(const GrammarSource& source, int longest_in_string)
      : source_(source), longest_in_string_(longest_in_string) {
    new_node();  // kAccept
  }
  GrammarAutomaton build();

 private:
  struct Link {
    Edge edge;
    int32_t next;  // of the node's list
  };

  int32_t new_node(Note note = {}) {
    if (heads_.size() >= GrammarAutomaton::kMaxNodes)
      throw Error(fmt::format("grammar: more than {} states", GrammarAutomaton::kMaxNodes));
    heads_.push_back(-1);
    out_.notes.push_back(note);
    return static_cast<int32_t>(heads_.size()) - 1;
  }
  void add(int32_t node, Edge edge) {
    if (links_.size() >= 8 * GrammarAutomaton::kMaxNodes) throw Error("grammar: too many transitions");
    links_.push_back({edge, heads_[node]});
    heads_[node] = static_cast<int32_t>(links_.size()) - 1;
  }
  void add_bytes(int32_t node, int low, int high, int32_t target, int32_t return_to = -1) {
    add(node, {EdgeKind::Byte, static_cast<uint8_t>(low), static_cast<uint8_t>(high), target, return_to});
  }
  void add_empty(int32_t node, int32_t target) { add(node, {EdgeKind::Empty, 0, 0, target, -1}); }

  int32_t lower(GrammarSource::Id id, int32_t next);
  int32_t lower_expr(const Expr& e, int32_t next);
  int32_t lower_bytes(std::string_view bytes, int32_t next);
  int32_t lower_alt(const Expr& e, int32_t next);
  int32_t lower_chars(const CharSet& set, int32_t next);
  int32_t lower_members(const Expr& e, int32_t next);
  int32_t insert_name(NameTrees& names, int32_t old, std::string_view name, int32_t rest);
  int32_t lower_repeat(const Expr& e, int32_t next);
  int32_t lower_until(std::string_view end, int32_t next);
  int json_string_rule(int min, int max);
  int json_char_rule();
  int32_t lower_json_string(int min, int max);
  int32_t lower_json_char();
  void note_repeat(GrammarSource::Id part, int32_t next, Note note);
  int16_t slice_of(GrammarSource::Id chars);

  bool may_expand(int rule) const {
    return source_.rules[rule].expand && heads_.size() < kExpandNodes && expanding_.size() < kExpandDepth &&
           std::find(expanding_.begin(), expanding_.end(), rule) == expanding_.end();
  }

  void prune();
  void refuse_left_recursion() const;
  std::string rule_name(int rule) const {
    return rule < static_cast<int>(source_.rules.size()) ? source_.rules[rule].name : "string";
  }

  const GrammarSource& source_;
  int longest_in_string_;
  GrammarAutomaton out_;
  std::vector<int32_t> heads_;
  std::vector<Link> links_;
  std::unordered_map<uint64_t, int32_t> memo_;
  std::map<std::pair<int, int>, int> json_string_rules_;
  int json_char_rule_ = -1;
  int depth_ = 0;  // of lower() in itself
  std::unordered_map<GrammarSource::Id, int16_t> slices_;
  std::vector<int> expanding_;  // rules being laid down, outermost first
};

int32_t Builder::lower(GrammarSource::Id id, int32_t next) {
  const uint64_t key = uint64_t(static_cast<uint32_t>(id)) << 32 | static_cast<uint32_t>(next);
  if (const auto at = memo_.find(key); at != memo_.end()) return at->second;
  if (++depth_ > kMaxLowerDepth) throw Error("grammar: nested too deeply");
  const int32_t node = lower_expr(source_.exprs[id], next);
  --depth_;
  memo_.emplace(key, node);
  return node;
}

int32_t Builder::lower_expr(const Expr& e, int32_t next) {
  switch (e.kind) {
    case Kind::Bytes:
      return lower_bytes(e.bytes, next);
    case Kind::Chars:
      return lower_chars(e.chars, next);
    case Kind::Seq:
      for (auto part = e.parts.rbegin(); part != e.parts.rend(); ++part) next = lower(*part, next);
      return next;
    case Kind::Alt:
      return lower_alt(e, next);
    case Kind::Repeat:
      return lower_repeat(e, next);
    case Kind::Rule:
    case Kind::JsonString: {
      const int rule = e.kind == Kind::Rule ? e.rule : json_string_rule(e.min, e.max);
      if (e.kind == Kind::Rule && may_expand(rule)) {
        expanding_.push_back(rule);
        const int32_t entry = lower(source_.rules[rule].body, next);
        expanding_.pop_back();
        return entry;
      }
      const int32_t node = new_node();
      add(node, {EdgeKind::Call, 0, 0, next, rule});
      return node;
    }
    case Kind::Token: {
      const int32_t node = new_node();
      add(node, {EdgeKind::Token, 0, 0, next, e.rule});
      return node;
    }
    case Kind::Members:
      return lower_members(e, next);
    case Kind::Until:
      return lower_until(e.bytes, next);
    case Kind::AnyText: {
      const int32_t node = new_node({Note::Slice::All});
      add_bytes(node, 0, 255, node);
      add_empty(node, next);
      return node;
    }
  }
  return next;
}

int32_t Builder::lower_bytes(std::string_view bytes, int32_t next) {
  for (auto b = bytes.rbegin(); b != bytes.rend(); ++b) {
    const int32_t node = new_node();
    add_bytes(node, static_cast<uint8_t>(*b), static_cast<uint8_t>(*b), next);
    next = node;
  }
  return next;
}

// Strings among the alternatives share their beginnings, so that an enum of thousands is one item at a time.
int32_t Builder::lower_alt(const Expr& e, int32_t next) {
  const int32_t node = new_node();
  std::vector<std::string_view> strings;
  for (const auto part : e.parts) {
    const Expr& p = source_.exprs[part];
    if (p.kind == Kind::Bytes && !p.bytes.empty())
      strings.push_back(p.bytes);
    else
      add_empty(node, lower(part, next));
  }
  if (strings.empty()) return node;
  std::sort(strings.begin(), strings.end());
  std::vector<int32_t> path{new_node()};  // path[n]: the node after n bytes of the last string
  add_empty(node, path[0]);
  std::string_view last;
  for (const std::string_view s : strings) {
    if (s == last) continue;
    const auto differ = std::mismatch(s.begin(), s.end(), last.begin(), last.end());
    path.resize(static_cast<size_t>(differ.first - s.begin()) + 1);
    while (path.size() <= s.size()) {
      const int32_t child = new_node();
      const auto b = static_cast<uint8_t>(s[path.size() - 1]);
      add_bytes(path.back(), b, b, child);
      path.push_back(child);
    }
    add_empty(path.back(), next);
    last = s;
  }
  return node;
}

int32_t Builder::lower_chars(const CharSet& set, int32_t next) {
  const int32_t entry = new_node();
  std::unordered_map<uint64_t, int32_t> tails;  // by the byte ranges still to come
  auto sequence = [&](const std::array<ByteRange, 4>& r, int n) {
    int32_t target = next;
    uint64_t key = 1;
    for (int i = n - 1; i > 0; --i) {
      key = key << 16 | r[i].low << 8 | r[i].high;
      auto [at, fresh] = tails.try_emplace(key, 0);
      if (fresh) {
        const int32_t node = new_node();
        add_bytes(node, r[i].low, r[i].high, target);
        at->second = node;
      }
      target = at->second;
    }
    add_bytes(entry, r[0].low, r[0].high, target);
  };
  for (const auto& [first, last] : set.ranges()) split_utf8(first, last, sequence);
  return entry;
}

// Where a repeated part has an alternative that takes every character of a slice, its first node is told how
// many follow.
void Builder::note_repeat(GrammarSource::Id part, int32_t next, Note note) {
  const Expr& e = source_.exprs[part];
  if (e.kind == Kind::Alt) {
    for (const auto p : e.parts)
      if (source_.exprs[p].kind == Kind::Chars) note_repeat(p, next, note);
  } else if (e.kind == Kind::Chars) {
    const uint64_t key = uint64_t(static_cast<uint32_t>(part)) << 32 | static_cast<uint32_t>(next);
    note.set = slice_of(part);
    if (note.set >= 0) out_.notes[memo_.at(key)] = note;
  }
}

// The largest of char_slices() that the set holds, or -1.
int16_t Builder::slice_of(GrammarSource::Id chars) {
  const auto [at, fresh] = slices_.try_emplace(chars, -1);
  if (fresh)
    for (size_t k = 0; k < char_slices().size() && at->second < 0; ++k)
      if (source_.exprs[chars].chars.contains(char_slices()[k])) at->second = static_cast<int16_t>(k);
  return at->second;
}

int32_t Builder::lower_repeat(const Expr& e, int32_t next) {
  const auto part = e.parts[0];
  Note note{Note::Slice::Chars, false, 0, INT32_MAX};
  if (e.max == GrammarSource::kUnbounded) {
    const int32_t loop = new_node();
    int32_t entry = lower(part, loop);
    note_repeat(part, loop, note);
    add_empty(loop, entry);
    add_empty(loop, next);
    if (e.min == 0) return loop;
    for (int i = 1; i < e.min; ++i) {
      const int32_t after = entry;
      entry = lower(part, after);
      note_repeat(part, after, note);
    }
    return entry;
  }
  int32_t entry = next;
  for (int i = e.max - 1; i >= 0; --i) {
    const int32_t after = entry;
    entry = lower(part, after);
    note.count = e.max - i;
    note_repeat(part, after, note);
    if (i >= e.min) {
      const int32_t choice = new_node();
      add_empty(choice, entry);
      add_empty(choice, next);
      entry = choice;
    }
  }
  return entry;
}

// From the last member to the first; where member i may begin, so may any up to the next required one. What may come at a
// place is one tree of names, which shares all but one path with the tree of the place behind it.
int32_t Builder::lower_members(const Expr& e, int32_t next) {
  const int32_t end = lower(e.parts[1], next), none = lower(e.parts[2], next);
  auto either = [&](int32_t a, int32_t b) {
    const int32_t node = new_node();
    add_empty(node, a);
    add_empty(node, b);
    return node;
  };
  NameTrees names;
  int32_t here = NameTrees::kNone, after = end;
  bool may_end = true;  // all that follow may be left out
  for (size_t i = e.parts.size() - 1; i >= 3; --i) {
    const Expr& member = source_.exprs[e.parts[i]];
    QUERN_CHECK(member.kind == Kind::Seq && source_.exprs[member.parts[0]].kind == Kind::Bytes,
                "a member begins with its name");
    int32_t rest = after;
    for (size_t k = member.parts.size() - 1; k > 0; --k) rest = lower(member.parts[k], rest);
    if (e.bytes[i - 3] == '1') {
      here = NameTrees::kNone;
      may_end = false;
    }
    here = insert_name(names, here, source_.exprs[member.parts[0]].bytes, rest);
    const int32_t with_comma = lower(e.parts[0], names[here].node);
    after = may_end ? either(with_comma, end) : with_comma;
  }
  if (here == NameTrees::kNone) return none;
  return may_end ? either(names[here].node, none) : names[here].node;
}

// A tree like `old` with one more name, which goes on at `rest`. `old` stays as it is.
int32_t Builder::insert_name(NameTrees& names, int32_t old, std::string_view name, int32_t rest) {
  std::vector<int32_t> path{old};
  for (const char c : name) path.push_back(names.child(path.back(), static_cast<uint8_t>(c)));
  int32_t below = NameTrees::kNone;
  for (size_t i = path.size(); i-- > 0;) {
    NameTrees::Place place;
    if (path[i] != NameTrees::kNone) place = names[path[i]];
    if (i == name.size())
      place.rests.push_back(rest);
    else
      place.next[static_cast<uint8_t>(name[i])] = below;
    place.node = new_node();
    for (const auto& [byte, child] : place.next) add_bytes(place.node, byte, byte, names[child].node);
    for (const int32_t r : place.rests) add_empty(place.node, r);
    names.places.push_back(std::move(place));
    below = static_cast<int32_t>(names.places.size()) - 1;
  }
  return below;
}

// The automaton of Knuth, Morris and Pratt: node j has seen the first j bytes of `end`. A token without a
// line feed cannot complete `end`, so every node takes it.
int32_t Builder::lower_until(std::string_view end, int32_t next) {
  QUERN_CHECK(!end.empty() && end.back() == '\n', "Until must end in a line feed");
  const size_t n = end.size();
  std::vector<size_t> fallback(n + 1, 0);  // the longest proper border of the first j bytes
  for (size_t j = 1, k = 0; j < n; ++j) {
    while (k > 0 && end[j] != end[k]) k = fallback[k];
    if (end[j] == end[k]) ++k;
    fallback[j + 1] = k;
  }
  std::vector<int32_t> nodes(n);
  for (auto& node : nodes) node = new_node({Note::Slice::Lines});
  for (size_t j = 0; j < n; ++j) {
    auto target = [&](int b) {
      size_t k = j;
      while (k > 0 && static_cast<uint8_t>(end[k]) != b) k = fallback[k];
      if (static_cast<uint8_t>(end[k]) == b) ++k;
      return k == n ? next : nodes[k];
    };
    for (int low = 0, high; low < 256; low = high + 1) {
      for (high = low; high < 255 && target(high + 1) == target(low);) ++high;
      add_bytes(nodes[j], low, high, target(low));
    }
  }
  return nodes[0];
}

int Builder::json_string_rule(int min, int max) {
  auto [at, fresh] = json_string_rules_.try_emplace({min, max}, static_cast<int>(out_.rule_entry.size()));
  if (fresh) {
    out_.rule_entry.push_back(-1);
    const int rule = at->second;
    out_.rule_entry[rule] = lower_json_string(min, max);
  }
  return json_string_rules_.at({min, max});
}

int Builder::json_char_rule() {
  if (json_char_rule_ < 0) {
    json_char_rule_ = static_cast<int>(out_.rule_entry.size());
    out_.rule_entry.push_back(-1);
    const int rule = json_char_rule_;
    out_.rule_entry[rule] = lower_json_char();
  }
  return json_char_rule_;
}

// Node i has seen i characters. ASCII stays in the chain; the first byte of anything longer leads into the
// rule that all nodes share, which returns to the chain. So a node is the only item there is inside a string.
int32_t Builder::lower_json_string(int min, int max) {
  const int32_t rest = out_.rule_entry[json_char_rule()];
  const bool bounded = max != GrammarSource::kUnbounded;
  const int n = bounded ? max + 1 : min + 1;
  int32_t after = -1;
  for (int i = n - 1; i >= 0; --i) {
    const int left = bounded ? max - i : INT32_MAX;
    Note note{Note::Slice::Chars, true, 0, left};
    if (left >= longest_in_string_ && i >= min) note.slice = Note::Slice::JsonString;
    if (left == 0) note = {};
    const int32_t node = new_node(note);
    if (i >= min) add_bytes(node, '"', '"', kAccept);
    if (left > 0) {
      const int32_t target = i == n - 1 ? node : after;
      add_bytes(node, 0x20, 0x21, target);
      add_bytes(node, 0x23, 0x5B, target);
      add_bytes(node, 0x5D, 0x7F, target);
      for (int32_t l = heads_[rest]; l >= 0; l = links_[l].next) {
        const Edge e = links_[l].edge;
        add_bytes(node, e.low, e.high, e.target, target);
      }
    }
    after = node;
    if (!bounded && min == 0) out_.json_body = node;
  }
  const int32_t entry = new_node();
  add_bytes(entry, '"', '"', after);
  return entry;
}

// A character beyond ASCII, or an escape. Surrogates come in pairs, which are one character.
int32_t Builder::lower_json_char() {
  const int32_t entry = lower_chars({{0x80, 0x10FFFF}}, kAccept);
  const int32_t escape = new_node();
  add_bytes(entry, '\\', '\\', escape);
  for (const char c : std::string_view("\"\\/bfnrt")) add_bytes(escape, c, c, kAccept);
  auto hex = [&](std::string_view digits, int32_t next) {  // one of `digits`, in either case
    const int32_t node = new_node();
    for (const char c : digits) {
      add_bytes(node, c, c, next);
      if (c >= 'a') add_bytes(node, c - 32, c - 32, next);
    }
    return node;
  };
  constexpr std::string_view any = "0123456789abcdef";
  const int32_t one = hex(any, kAccept), two = hex(any, one), three = hex(any, two);
  const int32_t low = hex("cdef", two);  // of the second half: D, then C-F
  const int32_t second = lower_bytes("\\u", hex("d", low));
  const int32_t high = hex("89ab", hex(any, hex(any, second)));
  const int32_t u = new_node(), d = new_node();
  add_bytes(escape, 'u', 'u', u);
  for (const char c : std::string_view("0123456789abcef")) {
    add_bytes(u, c, c, three);
    if (c >= 'a') add_bytes(u, c - 32, c - 32, three);
  }
  add_bytes(u, 'd', 'd', d);
  add_bytes(u, 'D', 'D', d);
  add_bytes(d, '0', '7', two);
  add_empty(d, high);
  return entry;
}

// Drops every edge that cannot lead to the end.
void Builder::prune() {
  const auto n = static_cast<int32_t>(heads_.size());
  const size_t n_rules = out_.rule_entry.size();
  // Waiting on node i, or on rule r as n + r: the nodes with an edge there.
  std::vector<std::vector<int32_t>> waiting(n + n_rules);
  std::vector<uint8_t> good(n + n_rules, 0);
  auto leads_on = [&](const Edge& e) {
    if (e.kind == EdgeKind::Call) return good[e.target] && good[n + e.value];
    return good[e.target] && (e.kind != EdgeKind::Byte || e.value < 0 || good[e.value]);
  };
  for (int32_t i = 0; i < n; ++i)
    for (int32_t l = heads_[i]; l >= 0; l = links_[l].next) {
      waiting[links_[l].edge.target].push_back(i);
      const Edge& e = links_[l].edge;
      if (e.kind == EdgeKind::Call) waiting[n + e.value].push_back(i);
      if (e.kind == EdgeKind::Byte && e.value >= 0) waiting[e.value].push_back(i);
    }
  std::vector<std::vector<int32_t>> entry_of(n);
  for (size_t r = 0; r < n_rules; ++r) entry_of[out_.rule_entry[r]].push_back(static_cast<int32_t>(r));
  std::vector<int32_t> queue{kAccept};
  good[kAccept] = 1;
  while (!queue.empty()) {
    const int32_t now = queue.back();
    queue.pop_back();
    auto mark = [&](int32_t i) {
      if (!good[i]) {
        good[i] = 1;
        queue.push_back(i);
      }
    };
    if (now < n)
      for (const int32_t r : entry_of[now]) mark(n + r);
    for (const int32_t i : waiting[now]) {
      if (good[i]) continue;
      for (int32_t l = heads_[i]; l >= 0; l = links_[l].next)
        if (leads_on(links_[l].edge)) {
          mark(i);
          break;
        }
    }
  }
  if (!good[out_.root]) throw Error("grammar: no text can match it");
  out_.edge_begin.assign(1, 0);
  for (int32_t i = 0; i < n; ++i) {
    const size_t first = out_.edge_list.size();
    for (int32_t l = heads_[i]; l >= 0; l = links_[l].next)
      if (leads_on(links_[l].edge)) out_.edge_list.push_back(links_[l].edge);
    std::reverse(out_.edge_list.begin() + static_cast<int64_t>(first), out_.edge_list.end());
    out_.edge_begin.push_back(static_cast<uint32_t>(out_.edge_list.size()));
    bool kernel = false;
    for (size_t e = first; e < out_.edge_list.size(); ++e)
      kernel |= out_.edge_list[e].kind == EdgeKind::Byte || out_.edge_list[e].kind == EdgeKind::Token;
    out_.is_kernel.push_back(kernel);
  }
}

// A rule that can call itself before any byte would call for ever.
void Builder::refuse_left_recursion() const {
  const size_t n_rules = out_.rule_entry.size();
  // The rules each rule may call first; through rules that may match nothing, too.
  std::vector<uint8_t> nullable(n_rules, 0);
  std::vector<std::vector<int32_t>> calls(n_rules);
  std::vector<int32_t> seen(out_.notes.size(), -1);
  int32_t stamp = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < n_rules; ++r) {
      calls[r].clear();
      std::vector<int32_t> stack{out_.rule_entry[r]};
      seen[stack[0]] = ++stamp;
      bool empty = false;
      auto reach = [&](int32_t node) {
        if (seen[node] == stamp) return;
        seen[node] = stamp;
        stack.push_back(node);
      };
      while (!stack.empty()) {
        const int32_t node = stack.back();
        stack.pop_back();
        empty |= node == kAccept;
        for (const Edge& e : out_.edges(node)) {
          if (e.kind == EdgeKind::Empty) reach(e.target);
          if (e.kind != EdgeKind::Call) continue;
          calls[r].push_back(e.value);
          if (nullable[e.value]) reach(e.target);
        }
      }
      if (empty && !nullable[r]) nullable[r] = changed = true;
    }
  }
  // A cycle among them: 1 on the path, 2 done.
  std::vector<uint8_t> state(n_rules, 0);
  for (size_t start = 0; start < n_rules; ++start) {
    if (state[start]) continue;
    std::vector<std::pair<int32_t, size_t>> path{{static_cast<int32_t>(start), 0}};
    state[start] = 1;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == calls[rule].size()) {
        state[rule] = 2;
        path.pop_back();
        continue;
      }
      const int32_t callee = calls[rule][next++];
      if (state[callee] == 1)
        throw Error(fmt::format(
            "grammar: rule '{}' is left-recursive: it may call itself before it takes a character",
            rule_name(callee)));
      if (state[callee] == 0) {
        state[callee] = 1;
        path.emplace_back(callee, 0);
      }
    }
  }
}

GrammarAutomaton Builder::build() {
  out_.rule_entry.assign(source_.rules.size(), -1);
  for (size_t r = 0; r < source_.rules.size(); ++r) {
    QUERN_CHECK(source_.rules[r].body >= 0, "a rule without a body: " + source_.rules[r].name);
    expanding_.assign(1, static_cast<int>(r));
    out_.rule_entry[r] = lower(source_.rules[r].body, kAccept);
  }
  expanding_.clear();
  out_.root = lower(source_.root, kAccept);
  prune();
  refuse_left_recursion();
  return std::move(out_);
}

}  // namespace

const CharSet& plain_chars() {
  static const CharSet set = CharSet::all().minus({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x2028, 0x2029}});
  return set;
}

const std::vector<CharSet>& char_slices() {
  static const std::vector<CharSet> sets = [] {
    const CharSet digits{{'0', '9'}}, small{{'a', 'z'}}, letters{{'A', 'Z'}, {'a', 'z'}};
    CharSet alphanumeric = letters;
    alphanumeric.add(digits);
    CharSet punctuation = CharSet{{'!', '~'}}.minus(alphanumeric);
    punctuation.add(0x7F, 0x7F);
    return std::vector<CharSet>{plain_chars(), plain_chars().minus(punctuation), alphanumeric, letters,
                                small};
  }();
  return sets;
}

GrammarAutomaton build_automaton(const GrammarSource& source, int longest_in_string) {
  return Builder(source, longest_in_string).build();
}

}  // namespace quern
