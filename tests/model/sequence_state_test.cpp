// A sequence that was copied, saved, moved or drafted goes on exactly as one that was left alone.
#include "cache/sequence.h"
#include "model/tiny_model.h"

namespace quern::test {
namespace {

constexpr uint32_t kSeed = 20261;

struct Future {
  Logits logits;
  State state;
};

// Runs `ids` on: some as prefill, the rest decoded.
Future go_on(TinyModel& m, Sequence& s, std::span<const int32_t> ids) {
  Future f;
  if (s.draft_length() < s.length()) m.draft(s);
  f.logits = m.prefill(s, ids.first(ids.size() / 2));
  for (const int32_t id : ids.subspan(ids.size() / 2)) {
    f.logits.push_back(m.decode(s, id)[0]);
    m.draft(s);
  }
  f.state = m.state(s);
  return f;
}

void expect_same(const Future& a, const Future& b, const std::string& what) {
  EXPECT_EQ(difference(a.logits, b.logits), "") << what;
  EXPECT_EQ(difference(a.state, b.state), "") << what;
}

TEST(SequenceState, restored_snapshot_equals_continuing) {
  TinyModel m;
  std::mt19937 rng(kSeed);
  for (const int64_t at : {64, 128, 192}) {
    const Ids past = random_ids(rng, at), future = random_ids(rng, 30);
    const auto original = m.sequence();
    m.prefill_in(*original, past, {50});
    const Snapshot snapshot = original->snapshot();
    const std::vector<int32_t> pages(original->pages().begin(), original->pages().begin() + at / kPageTokens);
    for (const int32_t page : pages) m.model->memory().pages.retain(page);
    const Future expected = go_on(m, *original, future);

    const auto restored = m.sequence();
    restored->restore(past, pages, snapshot);
    EXPECT_TRUE(restored->snapshot().bytes == snapshot.bytes);
    expect_same(go_on(m, *restored, future), expected, "restored at " + std::to_string(at));
    for (const int32_t page : pages) m.model->memory().pages.release(page);
  }
}

TEST(SequenceState, snapshots_of_equal_pasts_are_equal_bytes) {
  TinyModel m;
  std::mt19937 rng(kSeed + 1);
  const Ids past = random_ids(rng, 128);
  const auto prefilled = m.sequence(), decoded = m.sequence();
  m.prefill(*prefilled, past);
  m.prefill(*decoded, std::span(past).first(70));
  for (size_t i = 70; i < past.size(); ++i) {
    m.decode(*decoded, past[i]);
    m.draft(*decoded);
  }
  EXPECT_TRUE(prefilled->snapshot().bytes == decoded->snapshot().bytes);
}

TEST(SequenceState, forks_do_not_disturb_each_other) {
  TinyModel m;
  std::mt19937 rng(kSeed + 2);
  for (const int64_t at : {1, 63, 64, 66}) {
    const Ids past = random_ids(rng, at), left = random_ids(rng, 20), right = random_ids(rng, 20);
    const auto run_alone = [&](const Ids& future) {
      const auto s = m.sequence();
      m.prefill(*s, past);
      return go_on(m, *s, future);
    };
    const Future expected_left = run_alone(left), expected_right = run_alone(right);
    const auto parent = m.sequence();
    m.prefill(*parent, past);
    const auto child = parent->fork();
    ASSERT_NE(child, nullptr);
    expect_same(go_on(m, *child, left), expected_left, "child at " + std::to_string(at));
    expect_same(go_on(m, *parent, right), expected_right, "parent at " + std::to_string(at));
  }
}

TEST(SequenceState, swapped_out_and_in_equals_undisturbed) {
  TinyModel m;
  std::mt19937 rng(kSeed + 3);
  for (const int64_t at : {1, 61, 64, 130}) {
    const Ids past = random_ids(rng, at), more = random_ids(rng, 3), future = random_ids(rng, 20);
    Future expected;
    for (const bool swap : {false, true}) {
      const auto s = m.sequence();
      m.prefill(*s, past);
      for (const int32_t id : more) {  // so that pending rows exist
        m.decode(*s, id);
        m.draft(*s);
      }
      if (swap) {
        const int32_t used = m.model->memory().pages.used();
        s->swap_out();
        EXPECT_TRUE(s->swapped());
        EXPECT_LT(m.model->memory().pages.used(), used);
        const auto other = m.sequence();  // takes the slot and the pages
        m.prefill(*other, random_ids(rng, 100));
        ASSERT_TRUE(s->swap_in());
      }
      const Future f = go_on(m, *s, future);
      if (swap)
        expect_same(f, expected, "swapped at " + std::to_string(at));
      else
        expected = f;
    }
  }
}

TEST(SequenceState, pages_and_slots_all_come_back) {
  TinyModel m;
  std::mt19937 rng(kSeed + 4);
  {
    const auto a = m.sequence();
    m.prefill(*a, random_ids(rng, 200));
    const auto b = a->fork();
    m.prefill(*b, random_ids(rng, 100));
    a->swap_out();
  }
  EXPECT_EQ(m.model->memory().pages.used(), 0);
  EXPECT_EQ(m.model->memory().state.n_free(), m.model->memory().state.n_slots());
}

TEST(SequenceState, what_does_not_fit_changes_nothing) {
  TinyModel m;
  std::vector<std::unique_ptr<Sequence>> all;
  for (int i = 0; i < m.model->memory().state.n_slots(); ++i) all.push_back(m.sequence());
  EXPECT_EQ(m.sequence(), nullptr);
  const int64_t tokens = int64_t{m.model->memory().pages.total()} * kPageTokens;
  EXPECT_FALSE(all[0]->reserve(tokens + 1));
  EXPECT_EQ(m.model->memory().pages.used(), 0);
  EXPECT_TRUE(all[0]->reserve(tokens));
  EXPECT_EQ(all[1]->fork(), nullptr);  // no slot
}

// Every number of accepted rows of every number of drafts, from a past whose end has pending rows, must leave the state
// of the undrafted run; so must dropping the whole step.
TEST(SequenceState, every_accepted_count_of_every_draft_depth_equals_undrafted) {
  TinyModel m;
  std::mt19937 rng(kSeed + 5);
  for (const int64_t at : {59, 123}) {  // drafts cross blocks, a page, and the budget of 64 + 3
    const Ids past = random_ids(rng, at), future = random_ids(rng, kMaxDrafts + 4);
    // Undrafted: logits of every row, and the state after each.
    std::vector<State> states;
    Logits expected;
    const auto start = m.sequence();
    m.prefill(*start, past);
    m.decode(*start, future[0]);  // one pending row
    m.draft(*start);
    {
      const auto s = start->fork();
      states.push_back(m.state(*s));
      for (size_t i = 1; i < future.size(); ++i) {
        expected.push_back(m.decode(*s, future[i])[0]);
        m.draft(*s);
        states.push_back(m.state(*s));
      }
    }
    for (int k = 0; k <= kMaxDrafts; ++k) {
      for (int a = 0; a <= k + 1; ++a) {
        const std::string what = std::to_string(at) + "+1 ids, " + std::to_string(k) + " drafts, " +
                                 std::to_string(a) + " accepted, seed " + std::to_string(kSeed + 5);
        const auto s = start->fork();
        Ids drafts(future.begin() + 1, future.begin() + 2 + k);
        for (int i = std::max(a, 1); i <= k; ++i)
          drafts[i] = static_cast<int32_t>(rng() % 4000);  // wrong ones
        s->append(std::span(future).subspan(1, a));
        const Logits logits = m.step({{s.get(), drafts, Role::Decode, 0}}, {a})[0];
        EXPECT_EQ(difference(rows(logits, 0, std::max(a, 1)), rows(expected, 0, std::max(a, 1))), "") << what;
        if (a > 0) m.draft(*s);
        EXPECT_EQ(difference(m.state(*s), states[a]), "") << what;
        EXPECT_EQ(difference(m.decode(*s, future[1 + a]), rows(expected, a, a + 1)), "") << what;
      }
    }
  }
}

}  // namespace
}  // namespace quern::test
