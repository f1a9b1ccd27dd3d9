// Equivalences, bitwise, on the bundled model: how a sequence's rows are cut into steps, who shares the step, and how
// many threads run it change nothing.
#include "model/model.h"

#include "model/tiny_model.h"

namespace quern::test {
namespace {

constexpr uint32_t kSeed = 20260;

TEST(Model, chunked_prefill_equals_whole) {
  TinyModel m;
  std::mt19937 rng(kSeed);
  for (const int n : {1, 2, 3, 4, 5, 63, 64, 65, 66, 67, 68, 127, 128, 129, 130, 131, 200}) {
    const Ids ids = random_ids(rng, n);
    const auto whole = m.sequence();
    const Logits expected = m.prefill(*whole, ids);
    const auto expected_state = m.state(*whole);
    // Row by row where that is cheap, then small and large pieces at random.
    for (int trial = n < 6 || n == 67 ? 0 : 1 + n % 2; trial < (n < 6 || n > 128 ? 3 : 2 + n % 2); ++trial) {
      std::vector<int> pieces = {1};
      for (int i = 0; trial > 0 && i < n; ++i)
        pieces.push_back(1 + static_cast<int>(rng() % (trial == 1 ? 9 : 90)));
      const auto chunked = m.sequence();
      EXPECT_EQ(difference(m.prefill_in(*chunked, ids, pieces), expected), "")
          << n << " ids, trial " << trial;
      EXPECT_EQ(difference(m.state(*chunked), expected_state), "")
          << n << " ids, trial " << trial << ", seed " << kSeed;
    }
  }
}

TEST(Model, decode_rows_equal_prefill_rows) {  // on the CPU there is one form
  TinyModel m;
  std::mt19937 rng(kSeed + 1);
  const Ids ids = random_ids(rng, 90);
  const auto whole = m.sequence(), decoded = m.sequence();
  const Logits expected = m.prefill(*whole, ids);
  Logits got = m.prefill(*decoded, std::span(ids).first(50));
  for (size_t i = 50; i < ids.size(); ++i) {
    got.push_back(m.decode(*decoded, ids[i])[0]);
    m.draft(*decoded);
  }
  EXPECT_EQ(difference(got, expected), "");
  EXPECT_EQ(difference(m.state(*decoded), m.state(*whole)), "");
}

// Five conversations of random shape share steps at random; each must get what it gets alone.
TEST(Model, five_in_a_batch_equal_each_alone) {
  TinyModel m;
  std::mt19937 rng(kSeed + 2);
  std::vector<Ids> ids;
  std::vector<Logits> expected, got(5);
  std::vector<State> expected_state;
  std::vector<size_t> n_prompt;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(random_ids(rng, 20 + static_cast<int64_t>(rng() % 130)));
    n_prompt.push_back(1 + rng() % (ids[i].size() - 8));
    const auto alone = m.sequence();
    expected.push_back(m.prefill(*alone, std::span(ids[i]).first(n_prompt[i])));
    for (size_t j = n_prompt[i]; j < ids[i].size(); ++j) {
      expected[i].push_back(m.decode(*alone, ids[i][j])[0]);
      m.draft(*alone);
    }
    expected_state.push_back(m.state(*alone));
  }

  std::vector<std::unique_ptr<Sequence>> sequences;
  for (int i = 0; i < 5; ++i) sequences.push_back(m.sequence());
  for (bool more = true; more;) {
    std::vector<BatchItem> items;
    std::vector<int> who;
    for (int i = 0; i < 5; ++i) {
      Sequence& s = *sequences[i];
      const auto at = static_cast<size_t>(s.length());
      if (at == ids[i].size() || rng() % 3 == 0) continue;
      const bool prompt = at < n_prompt[i];
      const size_t n = prompt ? std::min<size_t>(1 + rng() % 40, n_prompt[i] - at) : 1;
      const auto piece = std::span(ids[i]).subspan(at, n);
      s.append(piece);
      items.push_back({&s, piece, prompt ? Role::Prefill : Role::Decode, 0});
      who.push_back(i);
    }
    if (!items.empty()) {
      const std::vector<Logits> logits = m.step(items);
      for (size_t j = 0; j < items.size(); ++j) {
        for (const auto& row : logits[j]) got[who[j]].push_back(row);
        if (items[j].role == Role::Decode) m.draft(*sequences[who[j]]);
      }
    }
    more = false;
    for (int i = 0; i < 5; ++i) more = more || static_cast<size_t>(sequences[i]->length()) < ids[i].size();
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(difference(got[i], expected[i]), "") << "sequence " << i << ", seed " << kSeed + 2;
    EXPECT_EQ(difference(m.state(*sequences[i]), expected_state[i]), "")
        << "sequence " << i << ", seed " << kSeed + 2;
  }
}

TEST(Model, any_number_of_threads_gives_the_same_bits) {
  std::mt19937 rng(kSeed + 3);
  const Ids ids = random_ids(rng, 150);
  Logits expected;
  State expected_state;
  for (const int threads : {1, 2, 5}) {
    TinyModel m(threads);
    const auto s = m.sequence();
    Logits got = m.prefill(*s, std::span(ids).first(140));
    for (size_t i = 140; i < ids.size(); ++i) {
      got.push_back(m.decode(*s, ids[i])[0]);
      m.draft(*s);
    }
    if (threads == 1) {
      expected = got;
      expected_state = m.state(*s);
    }
    EXPECT_EQ(difference(got, expected), "") << threads << " threads";
    EXPECT_EQ(difference(m.state(*s), expected_state), "") << threads << " threads";
  }
}

// A model without the draft block says the same.
TEST(Model, drafts_change_no_logits) {
  std::mt19937 rng(kSeed + 4);
  const Ids ids = random_ids(rng, 100);
  TinyModel with, without(2, DType::BF16, false);
  EXPECT_TRUE(with.model->has_drafts());
  EXPECT_FALSE(without.model->has_drafts());
  const auto a = with.sequence(), b = without.sequence();
  EXPECT_EQ(difference(with.prefill(*a, ids), without.prefill(*b, ids)), "");
}

}  // namespace
}  // namespace quern::test
