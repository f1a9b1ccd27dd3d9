#include "text/tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "text/detokenizer.h"
#include "text/gguf_tokenizer.h"
#include "text/nfc.h"
#include "text/tokenizer_config.h"

namespace quern {
namespace {

// Pieces up to this many bytes are merged by scanning for the best pair: quadratic, but in registers and L1.
constexpr size_t kShort = 48;

uint64_t hash_pair(uint64_t pair) {
  pair *= 0x9E3779B97F4A7C15;
  return pair ^ pair >> 32;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerSpec spec)
    : added_(std::move(spec.added)), pattern_(spec.pattern), nfc_(spec.nfc) {
  auto fail = [&](const std::string& what) { throw Error(spec.name + ": " + what); };
  auto& tokens = spec.tokens;

  for (const AddedToken& a : added_) {
    for (const auto& [set, flag] :
         {std::pair(a.lstrip, "lstrip"), std::pair(a.rstrip, "rstrip"),
          std::pair(a.single_word, "single_word"), std::pair(a.normalized, "normalized")})
      if (set) fail(fmt::format("added token '{}': '{}' is not supported", a.text, flag));
    if (a.text.empty() || a.id < 0)
      fail(fmt::format("added token '{}' (id {}): no text or no id", a.text, a.id));
    if (tokens.size() <= static_cast<size_t>(a.id)) tokens.resize(a.id + 1);
    if (!tokens[a.id].empty() && tokens[a.id] != a.text)
      fail(fmt::format("added token '{}': its id {} belongs to '{}'", a.text, a.id,
                       repair_utf8(tokens[a.id])));
    tokens[a.id] = a.text;
  }
  std::sort(added_.begin(), added_.end(), [](const auto& a, const auto& b) { return a.text < b.text; });
  while (!tokens.empty() && tokens.back().empty()) tokens.pop_back();
  kind_.assign(tokens.size(), 0);
  for (size_t i = 0; i < added_.size(); ++i) {
    const AddedToken& a = added_[i];
    if (i && added_[i - 1].text == a.text) fail(fmt::format("added token '{}' appears twice", a.text));
    if (kind_[a.id]) fail(fmt::format("added token '{}': id {} is taken twice", a.text, a.id));
    kind_[a.id] = a.special ? 2 : 1;
    starts_added_[static_cast<unsigned char>(a.text[0])] = true;
  }

  begin_.reserve(tokens.size() + 1);
  for (const std::string& t : tokens) {
    begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    bytes_ += t;
    longest_token_ = std::max(longest_token_, t.size());
    if (bytes_.size() >= kNone) fail("the tokens' bytes exceed 4 GiB");
  }
  begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  whole_ = std::make_unique<std::atomic<Whole>[]>(tokens.size());

  token_slots_.assign(std::bit_ceil(2 * tokens.size() + 2), kNone);
  std::fill(std::begin(byte_token_), std::end(byte_token_), kNone);
  for (size_t id = 0; id < tokens.size(); ++id) {
    const std::string& t = tokens[id];
    if (t.empty() || kind_[id]) continue;
    if (t.size() == 1) byte_token_[static_cast<unsigned char>(t[0])] = static_cast<uint32_t>(id);
    size_t slot = std::hash<std::string_view>()(t);
    for (;; ++slot) {
      uint32_t& s = token_slots_[slot & (token_slots_.size() - 1)];
      if (s == kNone) {
        s = static_cast<uint32_t>(id);
        break;
      }
      if (tokens[s] == t) fail(fmt::format("ids {} and {} are the same token '{}'", s, id, repair_utf8(t)));
    }
  }
  for (int b = 0; b < 256; ++b)
    if (byte_token_[b] == kNone) fail(fmt::format("the vocabulary has no token for the byte 0x{:02x}", b));

  merges_.assign(std::bit_ceil(2 * spec.merges.size() + 2), {UINT64_MAX, {kNone, kNone}});
  for (size_t rank = 0; rank < spec.merges.size(); ++rank) {
    const auto& m = spec.merges[rank];
    for (const int32_t id : {m.left, m.right, m.result}) {
      if (id < 0 || id >= size() || token_bytes(id).empty())
        fail(fmt::format("merge {}: {} is no token", rank, id));
      if (is_added(id)) fail(fmt::format("merge {}: '{}' is a control token", rank, token_bytes(id)));
    }
    const uint64_t pair = uint64_t(m.left) << 32 | uint32_t(m.right);
    size_t slot = hash_pair(pair);
    while (merges_[slot & (merges_.size() - 1)].pair != UINT64_MAX) {
      if (merges_[slot & (merges_.size() - 1)].pair == pair)
        fail(fmt::format("merge {} appears twice", rank));
      ++slot;
    }
    merges_[slot & (merges_.size() - 1)] = {pair,
                                            {static_cast<uint32_t>(rank), static_cast<uint32_t>(m.result)}};
  }
}

Tokenizer Tokenizer::from_file(const std::filesystem::path& path) {
  return Tokenizer(read_tokenizer_json(read_file(path), path.string()));
}

Tokenizer Tokenizer::from_model(const std::filesystem::path& model) {
  if (const auto gguf = find_gguf(model)) {
    const auto file = MappedFile::open(*gguf);
    return Tokenizer(read_tokenizer_gguf(parse_gguf(file->bytes(), gguf->string())));
  }
  std::error_code ignored;
  if (!std::filesystem::exists(model, ignored)) throw Error(model.string() + ": no such file or folder");
  const std::filesystem::path folder = folder_of_model(model);
  if (!std::filesystem::is_directory(folder, ignored)) return from_file(model);
  if (!std::filesystem::exists(folder / "tokenizer.json", ignored))
    throw Error(folder.string() + ": the folder has no tokenizer.json");
  read_tokenizer_config(folder);  // refuses what encode() does not do
  return from_file(folder / "tokenizer.json");
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= size()) return {};
  return std::string_view(bytes_).substr(begin_[id], begin_[id + 1] - begin_[id]);
}
bool Tokenizer::is_special(int32_t id) const { return id >= 0 && id < size() && kind_[id] == 2; }
bool Tokenizer::is_added(int32_t id) const { return id >= 0 && id < size() && kind_[id] != 0; }

std::optional<int32_t> Tokenizer::find_special(std::string_view spelling) const {
  const auto at = std::lower_bound(added_.begin(), added_.end(), spelling,
                                   [](const AddedToken& a, std::string_view s) { return a.text < s; });
  if (at == added_.end() || at->text != spelling) return std::nullopt;
  return at->id;
}

Tokenizer::Merged Tokenizer::find_merge(uint32_t left, uint32_t right) const {
  const uint64_t pair = uint64_t(left) << 32 | right;
  for (size_t slot = hash_pair(pair);; ++slot) {
    const MergeSlot& s = merges_[slot & (merges_.size() - 1)];
    if (s.pair == pair) return s.merged;
    if (s.pair == UINT64_MAX) return {kNone, kNone};
  }
}

uint32_t Tokenizer::find_token(std::string_view bytes) const {
  if (bytes.size() > longest_token_) return kNone;
  for (size_t slot = std::hash<std::string_view>()(bytes);; ++slot) {
    const uint32_t id = token_slots_[slot & (token_slots_.size() - 1)];
    if (id == kNone || token_bytes(static_cast<int32_t>(id)) == bytes) return id;
  }
}

// The longest added token at text[at]. Each byte narrows the sorted range of tokens that still agree.
const AddedToken* Tokenizer::match_added(std::string_view text, size_t at) const {
  const AddedToken* best = nullptr;
  auto low = added_.begin(), high = added_.end();
  for (size_t n = 0; at + n < text.size() && low != high; ++n) {
    const auto b = static_cast<unsigned char>(text[at + n]);
    auto byte = [n](const AddedToken& a) -> int {
      return a.text.size() > n ? static_cast<unsigned char>(a.text[n]) : -1;
    };
    low = std::partition_point(low, high, [&](const AddedToken& a) { return byte(a) < b; });
    high = std::partition_point(low, high, [&](const AddedToken& a) { return byte(a) == b; });
    if (low != high && low->text.size() == n + 1) best = &*low;
  }
  return best;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, ControlTokens mode) const {
  std::vector<int32_t> out;
  encode(text, mode, out);
  return out;
}

void Tokenizer::encode(std::string_view text, ControlTokens mode, std::vector<int32_t>& out) const {
  const TextPiece piece{text, mode};
  encode(std::span(&piece, 1), out);
}

void Tokenizer::encode(std::span<const TextPiece> pieces, std::vector<int32_t>& out) const {
  // One text; [from, to) are the stretches in which added tokens may lie.
  std::string joined;
  std::string_view text;
  std::vector<std::pair<size_t, size_t>> recognise;
  const bool one = pieces.size() == 1 && is_valid_utf8(pieces[0].text);
  if (one) text = pieces[0].text;
  size_t at = 0;
  for (const TextPiece& p : pieces) {
    if (!one) joined += is_valid_utf8(p.text) ? std::string(p.text) : repair_utf8(p.text);
    const size_t end = one ? text.size() : joined.size();
    if (p.mode == ControlTokens::Recognise && end > at) {
      if (!recognise.empty() && recognise.back().second == at)
        recognise.back().second = end;
      else
        recognise.emplace_back(at, end);
    }
    at = end;
  }
  if (!one) text = joined;

  size_t done = 0;
  for (const auto& [from, to] : recognise) {
    for (size_t i = from; i < to;) {
      const AddedToken* a =
          starts_added_[static_cast<unsigned char>(text[i])] ? match_added(text.substr(0, to), i) : nullptr;
      if (!a) {
        ++i;
        continue;
      }
      encode_stretch(text.substr(done, i - done), out);
      out.push_back(a->id);
      i += a->text.size();
      done = i;
    }
  }
  encode_stretch(text.substr(done), out);
}

void Tokenizer::encode_stretch(std::string_view text, std::vector<int32_t>& out) const {
  std::string normal;
  if (nfc_ && !is_surely_nfc(text)) {
    append_nfc(normal, text);
    text = normal;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = next_piece(pattern_, text, at);
    encode_piece(text.substr(at, end - at), out);
    at = end;
  }
}

void Tokenizer::encode_piece(std::string_view bytes, std::vector<int32_t>& out) const {
  if (bytes.size() == 1) {
    out.push_back(static_cast<int32_t>(byte_token_[static_cast<unsigned char>(bytes[0])]));
    return;
  }
  // A piece that is a token is nearly always what its bytes merge to; whether it is, is found out once.
  const uint32_t id = find_token(bytes);
  Whole whole = Whole::No;
  if (id != kNone) {
    whole = whole_[id].load(std::memory_order_relaxed);
    if (whole == Whole::Yes) {
      out.push_back(static_cast<int32_t>(id));
      return;
    }
  }
  const size_t before = out.size();
  if (bytes.size() <= kShort)
    merge_short(bytes, out);
  else
    merge_long(bytes, out);
  if (whole == Whole::Unknown)
    whole_[id].store(out.size() == before + 1 ? Whole::Yes : Whole::No, std::memory_order_relaxed);
}

void Tokenizer::merge_short(std::string_view bytes, std::vector<int32_t>& out) const {
  uint32_t token[kShort];
  Merged pair[kShort];  // pair[i]: the merge of token[i] and token[i + 1]
  size_t n = bytes.size();
  for (size_t i = 0; i < n; ++i) token[i] = byte_token_[static_cast<unsigned char>(bytes[i])];
  for (size_t i = 0; i + 1 < n; ++i) pair[i] = find_merge(token[i], token[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (pair[i].rank < pair[best].rank) best = i;
    if (pair[best].rank == kNone) break;
    token[best] = pair[best].id;
    --n;
    for (size_t i = best + 1; i < n; ++i) token[i] = token[i + 1];
    for (size_t i = best + 1; i + 1 < n; ++i) pair[i] = pair[i + 1];
    if (best > 0) pair[best - 1] = find_merge(token[best - 1], token[best]);
    if (best + 1 < n) pair[best] = find_merge(token[best], token[best + 1]);
  }
  for (size_t i = 0; i < n; ++i) out.push_back(static_cast<int32_t>(token[i]));
}

// A heap of candidate merges over a linked list of symbols. An entry is stale when the pair at its place has
// another rank by now; ranks are unique to pairs.
void Tokenizer::merge_long(std::string_view bytes, std::vector<int32_t>& out) const {
  if (bytes.size() >= kNone) throw Error("a text of 4 GiB or more cannot be tokenised");
  struct Symbol {
    uint32_t token, previous, next;
    Merged pair;  // with the next symbol; rank kNone where there is no merge or the symbol is gone
  };
  const auto n = static_cast<uint32_t>(bytes.size());
  std::vector<Symbol> symbols(n);
  std::vector<uint64_t> heap;  // rank << 32 | place, least first
  for (uint32_t i = 0; i < n; ++i)
    symbols[i] = {byte_token_[static_cast<unsigned char>(bytes[i])],
                  i ? i - 1 : kNone,
                  i + 1 < n ? i + 1 : kNone,
                  {kNone, kNone}};
  for (uint32_t i = 0; i + 1 < n; ++i) {
    symbols[i].pair = find_merge(symbols[i].token, symbols[i + 1].token);
    if (symbols[i].pair.rank != kNone) heap.push_back(uint64_t(symbols[i].pair.rank) << 32 | i);
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  auto renew = [&](uint32_t at) {
    Symbol& s = symbols[at];
    s.pair = s.next == kNone ? Merged{kNone, kNone} : find_merge(s.token, symbols[s.next].token);
    if (s.pair.rank == kNone) return;
    heap.push_back(uint64_t(s.pair.rank) << 32 | at);
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint64_t top = heap.back();
    heap.pop_back();
    const auto at = static_cast<uint32_t>(top);
    Symbol& s = symbols[at];
    if (s.pair.rank != top >> 32) continue;
    s.token = s.pair.id;
    Symbol& gone = symbols[s.next];
    gone.pair = {kNone, kNone};
    s.next = gone.next;
    if (s.next != kNone) symbols[s.next].previous = at;
    renew(at);
    if (s.previous != kNone) renew(s.previous);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(static_cast<int32_t>(symbols[i].token));
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer d(*this, skip_special);
  std::string out;
  for (const int32_t id : ids) out += d.push(id);
  return out + d.finish();
}

}  // namespace quern
