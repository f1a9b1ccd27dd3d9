// Every accepted count of every draft width, one after the other in random order on one sequence: after each, all of
// its state is compared byte for byte with that of a sequence that ran the same ids one at a time.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/tiny_engine.h"
#include "ops/rows.h"

namespace quern {
namespace {

using Bytes = std::vector<std::byte>;


// All that a sequence carries: of the trunk's layers and, in the last four, of the draft block.
struct State {
  Bytes M, conv, ple, keys_and_values, pooled, raw_keys;
  Bytes draft_keys_and_values, draft_pooled, draft_raw_keys, hidden;
};

State state_of(SequenceMemory& memory, Sequence& s) {
  { const auto settles_pending_rows = s.fork(); }
  memory.stream.synchronize();
  const auto append = [&](Bytes& to, const std::byte* from, int64_t n) {
    to.resize(to.size() + static_cast<size_t>(n));
    memory.stream.download(to.data() + to.size() - n, from, n);
  };
  // Row i of the last-but-one dimension of item `item` of a packed tensor.
  const auto append_row = [&](Bytes& to, const Tensor& t, int64_t item, int64_t row) {
    const int64_t bytes = row_bytes(t.dtype, t.cols());
    append(to, t.data + (item * t.shape[t.rank - 2] + row) * bytes, bytes);
    memory.stream.synchronize();  // before `to` grows again
  };
  State state;
  const int64_t length = s.length(), slot = s.slot();
  for (int i = 0; i < memory.state.shape().n_delta_layers; ++i) {
    const DeltaNetState& d = memory.state.delta(i);
    const int64_t bytes = d.M.bytes() / d.M.shape[0];
    append(state.M, d.M.data + slot * bytes, bytes);
    memory.stream.synchronize();
    for (int64_t p = std::max<int64_t>(0, length - kConvHistory); p < length; ++p)
      append_row(state.conv, d.ring, slot, p % d.ring.shape[1]);
  }
  const Tensor ple = memory.state.ple_ring();
  for (int64_t p = std::max<int64_t>(0, length - kPleHistory); p < length; ++p)
    append_row(state.ple, ple, slot, p % ple.shape[1]);
  for (int i = 0; i < memory.kv.n_layers(); ++i) {
    const QsaCache& layer = memory.kv.layer(i);
    const bool draft = i == memory.state.shape().draft_layer();
    // Position p of the draft block lies at entry p + 1, and its block b at pooled key b + 1 (QsaCache::shift).
    EXPECT_EQ(layer.shift, draft ? 1 : 0);
    const int64_t n = draft ? s.draft_length() - 1 : length;
    Bytes& keys_and_values = draft ? state.draft_keys_and_values : state.keys_and_values;
    Bytes& pooled = draft ? state.draft_pooled : state.pooled;
    Bytes& raw_keys = draft ? state.draft_raw_keys : state.raw_keys;
    for (int64_t e = layer.shift; e < n + layer.shift; ++e)
      for (int64_t head = 0; head < layer.k.shape[1]; ++head)
        for (const Tensor* t : {&layer.k, &layer.v})
          append_row(keys_and_values, *t, s.pages()[e / kPageTokens] * t->shape[1] + head, e % kPageTokens);
    for (int64_t b = layer.shift; b < n / kBlockTokens + layer.shift; ++b)
      append_row(pooled, layer.pooled, s.pages()[b / kPageBlocks], b % kPageBlocks);
    for (int64_t p = n / kBlockTokens * kBlockTokens; p < n; ++p)
      append_row(raw_keys, layer.ring, slot, p % layer.ring.shape[1]);
  }
  const Tensor hidden = memory.state.hidden_ring();
  append_row(state.hidden, hidden, slot, (length - 1) % kHiddenRing);
  return state;
}

// The draft block catches up with the ids that are known.
void catch_up(TinyModel& tiny, Batch& batch, Sequence& s) {
  const int64_t first = std::max<int64_t>(1, s.draft_length());
  if (first == static_cast<int64_t>(s.ids().size())) return;
  const DraftItem item{.sequence = &s,
                       .first = first,
                       .ids = std::span(s.ids()).subspan(static_cast<size_t>(first)),
                       .hidden = HiddenFrom::Trunk};
  batch.build_draft(std::span(&item, 1));
  tiny.model->draft(batch);
}

TEST(DraftCommit, any_accepted_count_of_any_width_leaves_the_undrafted_state) {
  TinyModel tiny(40, 3);
  ASSERT_TRUE(tiny.model->has_drafts());
  SequenceMemory& memory = tiny.model->memory();
  Batch batch(tiny.stream.device(), tiny.model->options().batch);
  std::mt19937 random(11);
  std::vector<int32_t> stream;
  for (int i = 0; i < 500; ++i)
    stream.push_back(random() % 40 == 0 ? 4000 : static_cast<int32_t>(random() % 4000));

  const auto start = [&] {
    auto s = Sequence::create(memory);
    const auto prompt = std::span(stream).first(61);
    s->append(prompt);
    EXPECT_TRUE(s->reserve(500));
    const BatchItem item{s.get(), prompt, Role::Prefill, 0};
    batch.build(std::span(&item, 1));
    tiny.model->forward(batch);
    s->commit(61);
    s->append(stream[61]);
    return s;
  };
  const auto drafted = start(), plain = start();

  std::vector<std::pair<int, int>> cases;  // rows of the step, rows that count
  for (int width = 0; width <= kMaxDrafts; ++width)
    for (int a = 1; a <= width + 1; ++a) cases.emplace_back(width + 1, a);
  std::shuffle(cases.begin(), cases.end(), random);
  for (const auto& [n, a] : cases) {
    SCOPED_TRACE(fmt::format("{} of {} rows count, from position {}", a, n, drafted->length()));
    const int64_t at = drafted->length();
    catch_up(tiny, batch, *drafted);
    std::vector<int32_t> rows(stream.begin() + at, stream.begin() + at + n);
    for (int i = a; i < n; ++i) rows[i] = (rows[i] + 1 + static_cast<int32_t>(random() % 3000)) % 4000;
    // Guesses of the draft block that come to nothing.
    for (int64_t i = 0; i + 1 < n && i < 3; ++i) {
      const DraftItem guess{.sequence = drafted.get(),
                            .first = at + 1 + i,
                            .ids = std::span(rows).subspan(static_cast<size_t>(i + 1), 1),
                            .hidden = HiddenFrom::Draft};
      batch.build_draft(std::span(&guess, 1));
      tiny.model->draft(batch);
    }
    const BatchItem item{drafted.get(), rows, Role::Decode, kAllRows};
    batch.build(std::span(&item, 1));
    tiny.model->forward(batch);
    drafted->append(std::span(stream).subspan(static_cast<size_t>(at + 1), static_cast<size_t>(a)));
    drafted->commit(a);

    while (plain->length() < drafted->length()) {
      const int64_t p = plain->length();
      catch_up(tiny, batch, *plain);
      const BatchItem one{plain.get(), std::span(stream).subspan(static_cast<size_t>(p), 1), Role::Decode, 1};
      batch.build(std::span(&one, 1));
      tiny.model->forward(batch);
      plain->append(stream[p + 1]);
      plain->commit(1);
    }
    catch_up(tiny, batch, *drafted);
    catch_up(tiny, batch, *plain);
    const State d = state_of(memory, *drafted), u = state_of(memory, *plain);
    ASSERT_EQ(d.M, u.M);
    ASSERT_EQ(d.conv, u.conv);
    ASSERT_EQ(d.ple, u.ple);
    ASSERT_EQ(d.keys_and_values, u.keys_and_values);
    ASSERT_EQ(d.pooled, u.pooled);
    ASSERT_EQ(d.raw_keys, u.raw_keys);
    ASSERT_EQ(drafted->draft_length(), plain->draft_length());
    ASSERT_EQ(d.draft_keys_and_values, u.draft_keys_and_values);
    ASSERT_EQ(d.draft_pooled, u.draft_pooled);
    ASSERT_EQ(d.draft_raw_keys, u.draft_raw_keys);
    ASSERT_EQ(d.hidden, u.hidden);
    // Nothing was compared with nothing.
    for (const Bytes* part : {&d.M, &d.conv, &d.ple, &d.keys_and_values, &d.pooled, &d.draft_keys_and_values,
                              &d.draft_pooled, &d.hidden})
      ASSERT_FALSE(part->empty());
    ASSERT_EQ(d.raw_keys.empty(), drafted->length() % kBlockTokens == 0);
    ASSERT_EQ(d.draft_raw_keys.empty(), (drafted->draft_length() - 1) % kBlockTokens == 0);
  }
  EXPECT_GT(drafted->length(), 200);
}

}  // namespace
}  // namespace quern

int main(int argc, char** argv) { return quern::run_tests(argc, argv); }
