#include "text/tokenizer_spec.h"

#include <fmt/core.h>

#include <array>
#include <unordered_map>

#include "base/check.h"
#include "base/utf8.h"

namespace quern {
namespace {

constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// byte → code point of GPT-2's alphabet: itself where it prints, else the next free one from U+0100.
const std::array<char32_t, 256>& alphabet() {
  static const auto table = [] {
    std::array<char32_t, 256> t{};
    char32_t next = 0x100;
    for (char32_t b = 0; b < 256; ++b) {
      const bool prints = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
      t[b] = prints ? b : next++;
    }
    return t;
  }();
  return table;
}

// A reader of one file: every message starts with its name.
struct Reader {
  const std::string& name;

  [[noreturn]] void fail(const std::string& what) const { throw Error(name + ": " + what); }

  const Json& member(const Json& object, std::string_view where, std::string_view key) const {
    const Json* v = object.find(key);
    if (!v) fail(fmt::format("{} has no '{}'", where, key));
    return *v;
  }
  std::string type_of(const Json& object, std::string_view where) const {
    const Json& t = member(object, where, "type");
    if (!t.is_string()) fail(fmt::format("{}.type: expected string, found {}", where, kind_name(t.kind())));
    return t.as_string();
  }
  bool flag(const Json& object, std::string_view key) const {
    const Json* v = object.find(key);
    if (!v || v->is_null()) return false;
    if (!v->is_bool()) fail(fmt::format("'{}': expected boolean, found {}", key, kind_name(v->kind())));
    return v->as_bool();
  }
  int32_t id(const Json& v, std::string_view token, int64_t limit) const {
    if (!v.is_int() || v.as_int() < 0) fail(fmt::format("token '{}': the id is no natural number", token));
    if (v.as_int() >= limit)
      fail(fmt::format("token '{}': id {} is out of proportion to the vocabulary (limit {})", token,
                       v.as_int(), limit));
    return static_cast<int32_t>(v.as_int());
  }

  bool is_nfc(const Json* normalizer) const;
  SplitPattern split_pattern(const Json* pre) const;
  void check_post_processor(const Json* post) const;
  void read_added(TokenizerSpec& spec, const Json* added, int64_t limit) const;
  void read_model(TokenizerSpec& spec, const Json& model, int64_t limit) const;
};

// null, NFC, or a Sequence of these.
bool Reader::is_nfc(const Json* normalizer) const {
  if (!normalizer || normalizer->is_null()) return false;
  const std::string type = type_of(*normalizer, "normalizer");
  if (type == "NFC") return true;
  if (type == "Sequence") {
    bool nfc = false;
    const Json& parts = member(*normalizer, "normalizer", "normalizers");
    if (!parts.is_array()) fail("normalizer.normalizers: expected array");
    for (const Json& part : parts.as_array()) {
      if (type_of(part, "normalizer") != "NFC")
        fail(fmt::format("normalizer '{}' is not supported (NFC or none is)", type_of(part, "normalizer")));
      nfc = true;
    }
    return nfc;
  }
  fail(fmt::format("normalizer '{}' is not supported (NFC or none is)", type));
}

// Sequence[Split(regex), ByteLevel].
SplitPattern Reader::split_pattern(const Json* pre) const {
  if (!pre || pre->is_null()) fail("pre_tokenizer: expected Split and ByteLevel, found none");
  if (type_of(*pre, "pre_tokenizer") != "Sequence")
    fail(fmt::format("pre_tokenizer '{}' is not supported (a Sequence of Split and ByteLevel is)",
                     type_of(*pre, "pre_tokenizer")));
  const Json& list = member(*pre, "pre_tokenizer", "pretokenizers");
  if (!list.is_array() || list.size() != 2) fail("pre_tokenizer: expected Split and ByteLevel");
  const Json &split = list.as_array()[0], &bytes = list.as_array()[1];
  for (const auto& [part, wanted] : {std::pair(&split, "Split"), std::pair(&bytes, "ByteLevel")})
    if (type_of(*part, "pre_tokenizer") != wanted)
      fail(fmt::format("pre_tokenizer: expected {}, found '{}'", wanted, type_of(*part, "pre_tokenizer")));
  if (flag(bytes, "add_prefix_space")) fail("pre_tokenizer: ByteLevel.add_prefix_space is not supported");
  if (flag(bytes, "use_regex")) fail("pre_tokenizer: ByteLevel.use_regex after Split is not supported");
  const Json& behavior = member(split, "Split", "behavior");
  if (!(behavior == Json("Isolated")))
    fail(fmt::format("pre_tokenizer: Split.behavior {} is not supported (\"Isolated\" is)",
                     write_json(behavior)));
  if (flag(split, "invert")) fail("pre_tokenizer: Split.invert is not supported");
  const Json* regex = member(split, "Split", "pattern").find("Regex");
  if (!regex || !regex->is_string()) fail("pre_tokenizer: Split.pattern has no Regex");
  if (regex->as_string() == kQwen2Pattern) return SplitPattern::Qwen2;
  if (regex->as_string() == kQwen35Pattern) return SplitPattern::Qwen35;
  fail(fmt::format("pre_tokenizer: the pattern is neither Qwen2's nor Qwen3.5's: {}", write_json(*regex)));
}

// A ByteLevel post-processor only moves offsets; anything else would add tokens.
void Reader::check_post_processor(const Json* post) const {
  if (!post || post->is_null()) return;
  const std::string type = type_of(*post, "post_processor");
  if (type != "ByteLevel")
    fail(fmt::format("post_processor '{}' is not supported (ByteLevel or none is)", type));
}

void Reader::read_added(TokenizerSpec& spec, const Json* added, int64_t limit) const {
  if (!added || added->is_null()) return;
  if (!added->is_array()) fail("added_tokens: expected array");
  for (const Json& t : added->as_array()) {
    const Json& content = member(t, "added_tokens", "content");
    if (!content.is_string() || content.as_string().empty()) fail("added_tokens: a content that is no text");
    AddedToken a;
    a.text = content.as_string();
    a.id = id(member(t, "added_tokens", "id"), a.text, limit);
    a.special = flag(t, "special");
    a.lstrip = flag(t, "lstrip");
    a.rstrip = flag(t, "rstrip");
    a.single_word = flag(t, "single_word");
    a.normalized = flag(t, "normalized");
    spec.added.push_back(std::move(a));
  }
}

void Reader::read_model(TokenizerSpec& spec, const Json& model, int64_t limit) const {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* v = model.find(key);
    if (v && !v->is_null() && !(*v == Json(""))) fail(fmt::format("model.{} is not supported", key));
  }
  for (const char* key : {"byte_fallback", "ignore_merges"})
    if (flag(model, key)) fail(fmt::format("model.{} is not supported", key));
  for (const char* key : {"dropout", "unk_token"}) {
    const Json* v = model.find(key);
    if (v && !v->is_null()) fail(fmt::format("model.{} is not supported", key));
  }
  std::unordered_map<int32_t, std::string_view> added_text;
  for (const AddedToken& a : spec.added) added_text.emplace(a.id, a.text);
  const Json& vocab = member(model, "model", "vocab");
  for (const auto& [spelling, value] : vocab.as_object()) {
    const int32_t i = id(value, spelling, limit);
    if (spec.tokens.size() <= static_cast<size_t>(i)) spec.tokens.resize(i + 1);
    auto bytes = bytes_of_spelling(spelling);
    // An added token may be listed in the vocabulary too, under any spelling.
    if (const auto a = added_text.find(i); a != added_text.end() && a->second == spelling) bytes = spelling;
    if (!bytes || bytes->empty()) fail(fmt::format("token '{}': not spelled in the byte alphabet", spelling));
    if (!spec.tokens[i].empty()) fail(fmt::format("token '{}': id {} is taken twice", spelling, i));
    spec.tokens[i] = std::move(*bytes);
  }
  const Json& merges = member(model, "model", "merges");
  if (!merges.is_array()) fail("model.merges: expected array");
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  pairs.reserve(merges.size());
  for (const Json& m : merges.as_array()) {
    if (m.is_string()) {
      const std::string_view line = m.as_string();
      const size_t space = line.find(' ');
      if (space == std::string_view::npos) fail(fmt::format("merge '{}': expected two tokens", line));
      pairs.emplace_back(line.substr(0, space), line.substr(space + 1));
    } else {
      if (!m.is_array() || m.size() != 2 || !m.as_array()[0].is_string() || !m.as_array()[1].is_string())
        fail("model.merges: expected pairs of tokens");
      pairs.emplace_back(m.as_array()[0].as_string(), m.as_array()[1].as_string());
    }
  }
  add_merges(spec, pairs);
}

}  // namespace

std::optional<std::string> bytes_of_spelling(std::string_view spelling) {
  static const auto byte_of = [] {
    std::array<int16_t, 0x144> t;
    t.fill(-1);
    for (int b = 0; b < 256; ++b) t[alphabet()[b]] = static_cast<int16_t>(b);
    return t;
  }();
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t i = 0; i < spelling.size();) {
    const Utf8Char c = decode_utf8(spelling, i);
    if (!c.valid || c.code_point >= byte_of.size() || byte_of[c.code_point] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_of[c.code_point]);
    i += c.size;
  }
  return bytes;
}

void add_merges(TokenizerSpec& spec, std::span<const std::pair<std::string_view, std::string_view>> merges) {
  std::unordered_map<std::string_view, int32_t> ids;
  ids.reserve(spec.tokens.size());
  for (size_t i = 0; i < spec.tokens.size(); ++i)
    if (!spec.tokens[i].empty()) ids.emplace(spec.tokens[i], static_cast<int32_t>(i));
  spec.merges.reserve(spec.merges.size() + merges.size());
  std::string both;
  for (const auto& [left, right] : merges) {
    TokenizerSpec::Merge m;
    const auto l = bytes_of_spelling(left), r = bytes_of_spelling(right);
    both = l && r ? *l + *r : std::string();
    const std::pair<const std::optional<std::string>*, int32_t*> parts[] = {{&l, &m.left}, {&r, &m.right}};
    auto find = [&](std::string_view bytes, int32_t& id) {
      const auto at = ids.find(bytes);
      if (bytes.empty() || at == ids.end())
        throw Error(fmt::format("{}: merge '{} {}': {} is no token of the vocabulary", spec.name, left, right,
                                &id == &m.result ? "the result" : "a part"));
      id = at->second;
    };
    for (const auto& [bytes, id] : parts) find(*bytes ? **bytes : std::string_view(), *id);
    find(both, m.result);
    spec.merges.push_back(m);
  }
}

void add_merges(TokenizerSpec& spec, std::span<const std::string> lines) {
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  pairs.reserve(lines.size());
  for (const std::string& line : lines) {
    const size_t space = line.find(' ');
    if (space == std::string::npos)
      throw Error(fmt::format("{}: merge '{}': expected two tokens", spec.name, line));
    pairs.emplace_back(std::string_view(line).substr(0, space), std::string_view(line).substr(space + 1));
  }
  add_merges(spec, pairs);
}

std::string spelling_of_bytes(std::string_view bytes) {
  std::string out;
  for (const char b : bytes) append_utf8(out, alphabet()[static_cast<unsigned char>(b)]);
  return out;
}

std::string_view pattern_text(SplitPattern pattern) {
  return pattern == SplitPattern::Qwen35 ? kQwen35Pattern : kQwen2Pattern;
}

TokenizerSpec read_tokenizer_json(std::string_view text, std::string name) {
  TokenizerSpec spec;
  spec.name = std::move(name);
  const Reader reader{spec.name};
  Json root;
  try {
    root = parse_json(text);
  } catch (const Error& e) {
    reader.fail(e.what());
  }
  if (!root.is_object()) reader.fail(fmt::format("expected object, found {}", kind_name(root.kind())));
  const Json& model = reader.member(root, "tokenizer", "model");
  if (reader.type_of(model, "model") != "BPE")
    reader.fail(fmt::format("model '{}' is not supported (BPE is)", reader.type_of(model, "model")));
  const Json& vocab = reader.member(model, "model", "vocab");
  if (!vocab.is_object()) reader.fail("model.vocab: expected object");
  spec.nfc = reader.is_nfc(root.find("normalizer"));
  spec.pattern = reader.split_pattern(root.find("pre_tokenizer"));
  reader.check_post_processor(root.find("post_processor"));
  const Json* decoder = root.find("decoder");
  if (!decoder || decoder->is_null() || reader.type_of(*decoder, "decoder") != "ByteLevel")
    reader.fail("decoder: expected ByteLevel");
  const Json* added = root.find("added_tokens");
  const int64_t limit = 2 * static_cast<int64_t>(vocab.size() + (added ? added->size() : 0)) + (1 << 16);
  reader.read_added(spec, added, limit);
  reader.read_model(spec, model, limit);
  return spec;
}

}  // namespace quern
