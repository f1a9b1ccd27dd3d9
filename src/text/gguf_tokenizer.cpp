#include "text/gguf_tokenizer.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace quern {
namespace {

constexpr int64_t kOrdinary = 1, kControl = 3, kUserDefined = 4, kUnused = 5;

const GgufValue& strings(const GgufFile& file, std::string_view key) {
  const GgufValue* v = file.find(key);
  if (v == nullptr) file.fail(key, "is missing");
  if (v->type != GgufType::Array || v->item_type != GgufType::String)
    file.fail(key, "expected an array of strings");
  return *v;
}

// "left right": the space that ends the left part. Neither part holds one: the alphabet spells it otherwise.
std::pair<std::string, std::string> split_merge(const TokenizerSpec& spec, const TokenizerSpec::Merge& m) {
  return {spelling_of_bytes(spec.tokens[static_cast<size_t>(m.left)]),
          spelling_of_bytes(spec.tokens[static_cast<size_t>(m.right)])};
}

}  // namespace

TokenizerSpec read_tokenizer_gguf(const GgufFile& file) {
  TokenizerSpec spec;
  spec.name = file.path;
  if (file.text("tokenizer.ggml.model") != "gpt2")
    file.fail("tokenizer.ggml.model",
              fmt::format("expected 'gpt2', found '{}'", file.text("tokenizer.ggml.model").substr(0, 40)));
  const std::string_view pre = file.text("tokenizer.ggml.pre");
  if (pre == "qwen35")
    spec.pattern = SplitPattern::Qwen35;
  else if (pre == "qwen2")
    spec.pattern = SplitPattern::Qwen2;
  else
    file.fail("tokenizer.ggml.pre",
              fmt::format("expected 'qwen35' or 'qwen2', found '{}'", pre.substr(0, 40)));
  spec.nfc = true;
  for (const char* key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token",
                          "tokenizer.ggml.add_sep_token", "tokenizer.ggml.add_space_prefix"}) {
    if (const GgufValue* v = file.find(key); v != nullptr && (v->type != GgufType::Bool || v->bits != 0))
      file.fail(key, "expected false: nothing is added to a text here");
  }

  const GgufValue& tokens = strings(file, "tokenizer.ggml.tokens");
  // Without it nobody knows which tokens are control tokens: a template's would be spelt out, and no reply would end.
  const std::vector<int64_t> types = file.integers("tokenizer.ggml.token_type");
  if (types.size() != tokens.strings.size())
    file.fail("tokenizer.ggml.token_type",
              fmt::format("expected {} entries, found {}", tokens.strings.size(), types.size()));
  spec.tokens.resize(tokens.strings.size());
  for (size_t i = 0; i < types.size(); ++i) {
    const std::string_view text = tokens.strings[i];
    if (types[i] == kUnused) continue;
    if (types[i] == kControl || types[i] == kUserDefined) {
      if (text.empty()) file.fail("tokenizer.ggml.tokens", fmt::format("token {} is empty", i));
      AddedToken a;
      a.id = static_cast<int32_t>(i);
      a.text = std::string(text);
      a.special = types[i] == kControl;
      spec.added.push_back(std::move(a));
      continue;
    }
    if (types[i] != kOrdinary)
      file.fail("tokenizer.ggml.token_type", fmt::format("token {}: type {} is not supported", i, types[i]));
    const auto bytes = bytes_of_spelling(text);
    if (!bytes)
      file.fail("tokenizer.ggml.tokens",
                fmt::format("token {} has a character outside the byte alphabet", i));
    spec.tokens[i] = *bytes;
  }
  const GgufValue& merges = strings(file, "tokenizer.ggml.merges");
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  for (size_t i = 0; i < merges.strings.size(); ++i) {
    const std::string_view line = merges.strings[i];
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos || space + 1 >= line.size())
      file.fail("tokenizer.ggml.merges", fmt::format("entry {}: expected two tokens", i));
    pairs.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  add_merges(spec, pairs);
  return spec;
}

void write_tokenizer_gguf(GgufKeys& keys, const TokenizerSpec& spec, int64_t vocab) {
  keys.text("tokenizer.ggml.model", "gpt2");
  keys.text("tokenizer.ggml.pre", spec.pattern == SplitPattern::Qwen35 ? "qwen35" : "qwen2");
  std::vector<std::string> tokens(static_cast<size_t>(vocab));
  std::vector<int64_t> types(static_cast<size_t>(vocab), kUnused);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i < spec.tokens.size() && !spec.tokens[i].empty()) {
      tokens[i] = spelling_of_bytes(spec.tokens[i]);
      types[i] = kOrdinary;
    } else {
      tokens[i] = fmt::format("[PAD{}]", i);
    }
  }
  for (const AddedToken& a : spec.added) {
    if (a.id >= vocab)
      throw Error(fmt::format("{}: token '{}': id {} is beyond the vocabulary of {}", spec.name, a.text, a.id,
                              vocab));
    tokens[static_cast<size_t>(a.id)] = a.text;
    types[static_cast<size_t>(a.id)] = a.special ? kControl : kUserDefined;
  }
  std::vector<std::string> merges;
  for (const TokenizerSpec::Merge& m : spec.merges) {
    const auto [left, right] = split_merge(spec, m);
    merges.push_back(left + " " + right);
  }
  keys.texts("tokenizer.ggml.tokens", tokens);
  keys.i32s("tokenizer.ggml.token_type", types);
  keys.texts("tokenizer.ggml.merges", merges);
}

Json write_tokenizer_json(const TokenizerSpec& spec) {
  const auto object = [](std::initializer_list<std::pair<const char*, Json>> members) {
    Json o;
    for (const auto& [key, value] : members) o.set(key, value);
    return o;
  };
  Json vocab{Json::Object{}};
  for (size_t i = 0; i < spec.tokens.size(); ++i) {
    if (!spec.tokens[i].empty())
      vocab.as_object().emplace_back(spelling_of_bytes(spec.tokens[i]), static_cast<int64_t>(i));
  }
  Json::Array merges, added;
  for (const TokenizerSpec::Merge& m : spec.merges) {
    auto [left, right] = split_merge(spec, m);
    merges.push_back(Json::Array{std::move(left), std::move(right)});
  }
  for (const AddedToken& a : spec.added)
    added.push_back(object({{"id", a.id},
                            {"content", a.text},
                            {"single_word", a.single_word},
                            {"lstrip", a.lstrip},
                            {"rstrip", a.rstrip},
                            {"normalized", a.normalized},
                            {"special", a.special}}));
  const Json split = object({{"type", "Split"},
                             {"pattern", object({{"Regex", std::string(pattern_text(spec.pattern))}})},
                             {"behavior", "Isolated"},
                             {"invert", false}});
  const Json bytes = object(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  return object(
      {{"version", "1.0"},
       {"truncation", nullptr},
       {"padding", nullptr},
       {"added_tokens", std::move(added)},
       {"normalizer", spec.nfc ? object({{"type", "NFC"}}) : Json()},
       {"pre_tokenizer", object({{"type", "Sequence"}, {"pretokenizers", Json::Array{split, bytes}}})},
       {"post_processor", nullptr},
       {"decoder", bytes},
       {"model", object({{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", false},
                         {"vocab", std::move(vocab)},
                         {"merges", std::move(merges)}})}});
}

}  // namespace quern
