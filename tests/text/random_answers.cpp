// An engine of random logits: of the tokens that a schema's grammar allows each is as likely as any other. Usage:
// random_answers SCHEMAS.json COUNT [SEED]; SCHEMAS.json is [{"name", "schema"}]. Prints COUNT documents of each as
// {"schema": i, "text": "…"}, a line a document, for an independent validator (tests/npm/schemas/check.mjs). Qwen3's
// vocabulary and quern-tiny's take turns where the former is installed.
//
// What is left to chance may never end. So with every token the odds grow that one is taken which brings the end
// nearer: the end itself, else a closing bracket, a quote or a digit, else null; opening a bracket comes last.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <exception>

#include "base/check.h"
#include "base/mapped_file.h"
#include "text/grammar_test_tools.h"

namespace quern {
namespace {

// Bit sets over the vocabulary, the nearest to the end first; the last one is everything.
std::vector<std::vector<uint32_t>> closing_ranks(const test::Vocabulary& v) {
  constexpr size_t kRanks = 5;
  std::vector<std::vector<uint32_t>> ranks(kRanks, std::vector<uint32_t>(v.grammar->words()));
  const auto put = [&](size_t rank, int32_t id) { ranks[rank][id >> 5] |= uint32_t{1} << (id & 31); };
  for (int32_t id = 0; id < v.grammar->size(); ++id) {
    const std::string_view text = v.grammar->bytes(id);
    put(kRanks - 1, id);
    if (id == v.end) put(0, id);
    if (text.empty() || text.find_first_of("{[") != text.npos) continue;
    put(kRanks - 2, id);
    const bool digit = text.size() == 1 && text[0] >= '0' && text[0] <= '9';
    if (text == "}" || text == "]" || text == "\"" || digit) put(1, id);
    if (text == "n" || text == "null") put(2, id);
  }
  return ranks;
}

class RandomEngine {
 public:
  explicit RandomEngine(const test::Vocabulary& v)
      : v_(v), ranks_(closing_ranks(v)), mask_(v.grammar->words()) {}

  std::string answer(const GrammarPtr& grammar, std::mt19937_64& rng) {
    GrammarMatcher matcher(grammar);
    std::vector<int32_t> ids;
    const int patience = 4 + static_cast<int>(rng() % 60);
    for (int step = 0;; ++step) {
      if (step > 4000) throw Error("no end after 4000 tokens: " + v_.tokenizer.decode(ids));
      matcher.fill_mask(mask_);
      int32_t id = -1;
      // Never at all times: behind digits without end, as a pattern may have them, another token must get its chance.
      if (static_cast<int>(rng() % 64) < std::min(step - patience, 56))
        for (const auto& rank : ranks_)
          if ((id = pick(rank, rng)) >= 0) break;
      if (id < 0) id = pick(ranks_.back(), rng);
      if (id < 0) throw Error("no token is allowed after: " + v_.tokenizer.decode(ids));
      if (!matcher.accept(id))
        throw Error("a token of the mask was refused after: " + v_.tokenizer.decode(ids));
      if (id == v_.end) return v_.tokenizer.decode(ids);
      ids.push_back(id);
    }
  }

 private:
  // One of the allowed tokens that `among` holds, or -1.
  int32_t pick(const std::vector<uint32_t>& among, std::mt19937_64& rng) const {
    uint64_t n = 0;
    for (size_t w = 0; w < mask_.size(); ++w) n += static_cast<uint64_t>(std::popcount(mask_[w] & among[w]));
    if (n == 0) return -1;
    uint64_t k = rng() % n;
    for (size_t w = 0;; ++w) {
      uint32_t bits = mask_[w] & among[w];
      const auto here = static_cast<uint64_t>(std::popcount(bits));
      if (k >= here) {
        k -= here;
        continue;
      }
      for (; k > 0; --k) bits &= bits - 1;
      return static_cast<int32_t>(w * 32) + std::countr_zero(bits);
    }
  }

  const test::Vocabulary& v_;
  std::vector<std::vector<uint32_t>> ranks_;
  std::vector<uint32_t> mask_;
};

int run(int argc, char** argv) {
  if (argc < 3) throw Error("usage: random_answers SCHEMAS.json COUNT [SEED]");
  const Json schemas = parse_json(read_file(argv[1], 16 << 20));
  const int count = std::stoi(argv[2]);
  const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : std::random_device{}();
  std::fprintf(stderr, "random_answers: seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 rng(seed);
  std::vector<const test::Vocabulary*> vocabularies{&test::tiny()};
  if (std::filesystem::exists(test::kQwen3)) {
    static const test::Vocabulary qwen3(test::kQwen3);
    vocabularies.push_back(&qwen3);
  }
  for (size_t turn = 0; turn < vocabularies.size(); ++turn) {
    const test::Vocabulary& v = *vocabularies[turn];
    RandomEngine engine(v);
    for (size_t i = 0; i < schemas.size(); ++i) {
      const Json& entry = schemas.as_array()[i];
      try {
        const GrammarPtr grammar = compile_json_schema(v.grammar, *entry.find("schema"));
        for (size_t k = turn; k < static_cast<size_t>(count); k += vocabularies.size()) {
          Json line;
          line.set("schema", static_cast<int64_t>(i));
          line.set("text", engine.answer(grammar, rng));
          std::puts(write_json(line).c_str());
        }
      } catch (const Error& e) {
        throw Error(entry.find("name")->as_string() + ": " + e.what());
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) {
  try {
    return quern::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "random_answers: %s\n", e.what());
    return 1;
  }
}
