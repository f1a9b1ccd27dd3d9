#include "model/ngram_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/check.h"

namespace quern {
namespace {

// The constants of the released model (MODEL.md §1.2).
TEST(NgramHash, recipe_gives_the_released_constants) {
  Config c;
  c.vocab = 248320;
  c.ple.ngram = 3;
  c.ple.heads_per_ngram = 8;
  c.ple.vocab_base = 20'000'000;
  const NgramTable t = compute_ngram_table(c);
  EXPECT_EQ(t.hash.multiplier, (std::array<int64_t, 3>{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(t.hash.vocab, (std::vector<int64_t>{20000003, 20000023, 20000033, 20000047, 20000059, 20000063,
                                                20000069, 20000077, 20000081, 20000093, 20000107, 20000147,
                                                20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(t.hash.offset.back(), 300001275);
  EXPECT_EQ(t.rows, 320001536);
}

TEST(NgramHash, bundled_tensors_equal_the_recipe) {
  const auto checkpoint = Checkpoint::open(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny");
  Config config = read_config(*checkpoint);
  const NgramTable t = read_ngram_table(*checkpoint, config);
  EXPECT_EQ(t.rows, 64896);
  EXPECT_EQ(t.hash.offset.back() + t.hash.vocab.back(), 64794);
  config.ple.seed = 1235;
  try {
    read_ngram_table(*checkpoint, config);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), testing::HasSubstr("layer_multipliers': entry 0: expected"));
  }
}

// Against 128-bit arithmetic on random tokens, at the start of a sequence and across document ends.
TEST(NgramHash, rows_follow_the_formula) {
  Config c;
  c.vocab = 4096;
  c.ple.ngram = 3;
  c.ple.heads_per_ngram = 8;
  c.ple.vocab_base = 4000;
  c.ple.eos_id = 4000;
  const NgramTable table = compute_ngram_table(c);
  const NgramHash& h = table.hash;
  std::mt19937 gen(7);
  for (int trial = 0; trial < 2000; ++trial) {
    int32_t t[3];
    for (int32_t& x : t) x = gen() % 4 == 0 ? 4000 : static_cast<int32_t>(gen() % 4096);
    const size_t known = 1 + gen() % 3;
    std::vector<int64_t> rows(16);
    ngram_rows(h, std::span(t, known), rows);
    const auto wrap = [](__int128 x) { return static_cast<int64_t>(static_cast<uint64_t>(x)); };
    const bool cut1 = known < 2 || t[1] == 4000;
    const bool cut2 = cut1 || known < 3 || t[2] == 4000;
    const int64_t m2 = wrap(static_cast<__int128>(t[0]) * h.multiplier[0]) ^
                       wrap(static_cast<__int128>(cut1 ? 4000 : t[1]) * h.multiplier[1]);
    const int64_t m3 = m2 ^ wrap(static_cast<__int128>(cut2 ? 4000 : t[2]) * h.multiplier[2]);
    for (size_t i = 0; i < 16; ++i) {
      const int64_t m = i < 8 ? m2 : m3, v = h.vocab[i];
      ASSERT_EQ(rows[i], (m % v + v) % v + h.offset[i]) << "seed 7, trial " << trial << ", head " << i;
      ASSERT_LT(rows[i], table.rows);
    }
  }
}

}  // namespace
}  // namespace quern
