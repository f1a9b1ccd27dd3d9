// EngineCore's second half: what a step computes once it is known who runs.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_core.h"

namespace quern {
namespace {

// Entries of the draft block that may lag behind before a pass must catch up (Batch::build_draft takes
// kMaxDrafts + 1 at a time).
constexpr int64_t kMaxLag = kMaxDrafts + 1;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

}  // namespace

// How many ids to draft for a decoding reply, and how.
EngineCore::Wish EngineCore::wish_for(Reply& r, int64_t n_sequences) {
  const Request& request = r.request();
  Wish wish;
  int64_t most = std::min<int64_t>(options_.max_drafts, kMaxDrafts);
  if (request.max_drafts >= 0) most = std::min<int64_t>(most, request.max_drafts);
  most = std::min(most, request.max_tokens - r.reply_size() - 1);
  // Where replies are shared every multiple of 64 is met exactly, for a snapshot.
  if (share_replies_) most = std::min(most, kPageTokens - r.length() % kPageTokens - 1);
  if (most <= 0) return wish;

  // Ids that the thinking budget dictates are known without a model.
  if (request.thinking_budget >= 0) {
    std::vector<int32_t> said(r.ids.begin() + r.prompt_size(), r.ids.end());
    while (static_cast<int64_t>(wish.ids.size()) < most) {
      const int32_t id = forced_id(request, said, static_cast<int64_t>(said.size()));
      if (id < 0) break;
      wish.ids.push_back(id);
      said.push_back(id);
    }
    if (!wish.ids.empty()) {
      wish.source = DraftSource::Forced;
      wish.depth = static_cast<int>(wish.ids.size());
      return wish;
    }
  }

  NgramDraft::Proposal proposal;
  if (options_.draft_lookup) {
    r.lookup.extend(r.ids);
    proposal = r.lookup.propose(r.ids, static_cast<int>(most));
    GrammarPlace ahead = r.grammar;
    size_t allowed = 0;
    while (allowed < proposal.ids.size() && ahead.take(proposal.ids[allowed])) ++allowed;
    proposal.ids.resize(allowed);
  }
  const bool block = options_.draft_block && model_.has_drafts();
  if (options_.fixed_drafts) {
    if (!proposal.ids.empty()) {
      const auto depth = static_cast<int>(proposal.ids.size());
      wish = {DraftSource::Lookup, depth, proposal.match, std::move(proposal.ids)};
    } else if (block) {
      wish.source = DraftSource::Block;
      wish.depth = static_cast<int>(most);
    }
    return wish;
  }

  DraftCost cost;
  cost.step = meter_.model();
  cost.pass = pass_seconds_;
  cost.sequences = std::max<int64_t>(n_sequences, 1);
  DraftChoice by_block, by_lookup;
  if (block) by_block = best_depth(r.acceptance, 0, true, static_cast<int>(most), cost);
  if (!proposal.ids.empty())
    by_lookup = best_depth(r.acceptance, Acceptance::bucket(DraftSource::Lookup, proposal.match), false,
                           static_cast<int>(proposal.ids.size()), cost);
  if (block) note_drafts(DraftSource::Block, 0, request, by_block.depth > 0, n_sequences);
  if (!proposal.ids.empty())
    note_drafts(DraftSource::Lookup, Acceptance::bucket(DraftSource::Lookup, proposal.match), request,
                by_lookup.depth > 0, n_sequences);
  // A source left aside for long is tried again with one draft: text changes.
  if (block && by_block.depth == 0 && ++r.steps_since_block >= kProbeSteps) by_block.depth = 1;
  if (!proposal.ids.empty() && by_lookup.depth == 0 && ++r.steps_since_lookup >= kProbeSteps)
    by_lookup.depth = 1;
  if (by_lookup.depth > 0 &&
      (by_block.depth == 0 || by_lookup.tokens_per_second >= by_block.tokens_per_second)) {
    r.steps_since_lookup = 0;
    proposal.ids.resize(static_cast<size_t>(by_lookup.depth));
    wish = {DraftSource::Lookup, by_lookup.depth, proposal.match, std::move(proposal.ids)};
  } else if (by_block.depth > 0) {
    r.steps_since_block = 0;
    wish.source = DraftSource::Block;
    wish.depth = by_block.depth;
  }
  return wish;
}

// A line in the log whenever drafts of a source go off or on for a kind of request.
void EngineCore::note_drafts(DraftSource source, int bucket, const Request& request, bool pays,
                             int64_t n_sequences) {
  const RequestKind kind = kind_of(request);
  const bool block = source == DraftSource::Block;
  DraftSwitch& s = (block ? block_switch_ : lookup_switch_)[static_cast<size_t>(kind)];
  if (!s.observe(pays)) return;
  log(LogLevel::Info,
      "drafts by {} are {} for {} replies: {:.0f} % of first drafts accepted, {} sequences in a step",
      block ? "the draft block" : "look-up", s.on() ? "on" : "off", name(kind),
      100 * acceptance_.chance(bucket, 0), n_sequences);
}

// Fills row.drafts, and brings the draft block's caches up to date where they lag or a snapshot needs them.
void EngineCore::draft(std::vector<Row>& rows) {
  const bool block = model_.has_drafts();
  std::vector<Row*> drafting;
  std::vector<DraftItem> items;
  std::vector<Row*> item_rows;
  for (Row& row : rows) {
    Reply& r = *row.reply;
    if (r.prefilling()) continue;
    const Wish& wish = wishes_[r.key];
    const int64_t depth = std::min<int64_t>(row.n_rows - 1, wish.depth);
    row.source = depth > 0 ? wish.source : DraftSource::None;
    row.match = wish.match;
    if (row.source == DraftSource::Lookup || row.source == DraftSource::Forced)
      row.drafts.assign(wish.ids.begin(), wish.ids.begin() + depth);
    if (!block) continue;
    Sequence& s = *r.sequence;
    const auto known = static_cast<int64_t>(s.ids().size());
    const bool snapshot_due = share_replies_ && s.length() > r.prompt_size() && s.length() % kPageTokens == 0;
    if (row.source != DraftSource::Block && !snapshot_due && known - s.draft_length() + row.n_rows <= kMaxLag)
      continue;
    const int64_t first = std::max<int64_t>(1, s.draft_length());
    items.push_back({.sequence = &s,
                     .first = first,
                     .ids = std::span<const int32_t>(s.ids()).subspan(static_cast<size_t>(first)),
                     .hidden = HiddenFrom::Trunk});
    item_rows.push_back(&row);
  }

  std::vector<int32_t> chosen;
  while (!items.empty()) {
    const double begin = clock_();
    batch_.build_draft(items);
    const Tensor logits = model_.draft(batch_);
    std::vector<ChoiceRow> choices;
    drafting.clear();
    for (size_t i = 0; i < item_rows.size(); ++i) {
      Row& row = *item_rows[i];
      if (row.source != DraftSource::Block) continue;
      choices.push_back({row.reply.get(), row.drafts, static_cast<int64_t>(i)});
      drafting.push_back(&row);
    }
    chosen.clear();
    chooser_.choose(logits, choices, chosen);
    // The next pass: one entry more, with the drafted id, for those that want another.
    items.clear();
    item_rows.clear();
    for (size_t i = 0; i < drafting.size(); ++i) {
      Row& row = *drafting[i];
      if (chosen[i] < 0) continue;
      row.drafts.push_back(chosen[i]);
      const int64_t depth = std::min<int64_t>(row.n_rows - 1, wishes_[row.reply->key].depth);
      if (static_cast<int64_t>(row.drafts.size()) >= depth) continue;
      const auto entry = static_cast<int64_t>(row.reply->ids.size() + row.drafts.size()) - 1;
      items.push_back(
          {.sequence = row.reply->sequence.get(), .first = entry, .ids = {}, .hidden = HiddenFrom::Draft});
      item_rows.push_back(&row);
    }
    for (size_t i = 0; i < items.size(); ++i)
      items[i].ids = std::span<const int32_t>(item_rows[i]->drafts).last(1);
    if (!drafting.empty()) {
      const double took = clock_() - begin;
      pass_seconds_ = pass_seconds_ == 0 ? took : 0.9 * pass_seconds_ + 0.1 * took;
    }
  }

  for (Row& row : rows) {
    Reply& r = *row.reply;
    if (r.prefilling() || !share_replies_) continue;
    const int64_t length = r.length();
    if (length <= r.prompt_size() || length % kPageTokens != 0) continue;
    if (r.reply_snapshot && r.reply_snapshot->position == length) continue;
    r.reply_snapshot = std::make_shared<const Snapshot>(r.sequence->snapshot());
  }
}

void EngineCore::run(std::vector<Row>& rows) {
  const double begin = clock_();
  std::vector<BatchItem> items;
  int64_t decode_rows = 0, prefill_rows = 0;
  for (Row& row : rows) {
    Reply& r = *row.reply;
    const std::vector<int32_t>& ids = r.ids;
    const int64_t length = r.length();
    BatchItem item;
    item.sequence = r.sequence.get();
    if (r.prefilling()) {
      item.ids =
          std::span<const int32_t>(ids).subspan(static_cast<size_t>(length), static_cast<size_t>(row.n_rows));
      item.role = Role::Prefill;
      item.n_logits = length + row.n_rows == r.prompt_size() ? 1 : 0;
      prefill_rows += row.n_rows;
    } else {
      row.ids.assign(ids.begin() + length, ids.end());  // the id that runs next
      row.ids.insert(row.ids.end(), row.drafts.begin(), row.drafts.end());
      item.ids = row.ids;
      item.role = Role::Decode;
      item.n_logits = kAllRows;
      decode_rows += static_cast<int64_t>(row.ids.size());
    }
    items.push_back(item);
  }
  batch_.build(items);
  const Tensor logits = model_.forward(batch_);

  // Prefill rows count whatever their logits say; then replies that wait for the same prompt are forked off, and
  // all ids are chosen at once.
  std::vector<ReplyPtr> forked;
  std::vector<std::pair<size_t, ReplyPtr>> fork_rows;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (items[i].role != Role::Prefill) continue;
    rows[i].reply->sequence->commit(static_cast<int32_t>(rows[i].n_rows));
    if (items[i].n_logits == 0) continue;
    forked.clear();
    fork_siblings(rows[i].reply, forked);
    for (ReplyPtr& f : forked) fork_rows.emplace_back(i, std::move(f));
  }
  std::vector<ChoiceRow> choices;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (items[i].n_logits == 0) continue;
    const int64_t n = items[i].role == Role::Decode ? static_cast<int64_t>(rows[i].ids.size()) : 1;
    for (int64_t j = 0; j < n; ++j)
      choices.push_back({rows[i].reply.get(),
                         std::span<const int32_t>(rows[i].drafts).first(static_cast<size_t>(j)),
                         batch_.first_logits(i) + j});
  }
  for (const auto& [i, reply] : fork_rows) choices.push_back({reply.get(), {}, batch_.first_logits(i)});
  std::vector<int32_t> chosen;
  chooser_.choose(logits, choices, chosen);
  meter_.observe(decode_rows, prefill_rows, clock_() - begin);

  size_t next = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (items[i].n_logits == 0) continue;
    const size_t n = items[i].role == Role::Decode ? rows[i].ids.size() : 1;
    rows[i].chosen.assign(chosen.begin() + static_cast<int64_t>(next),
                          chosen.begin() + static_cast<int64_t>(next + n));
    next += n;
  }
  std::vector<Row> forks;
  for (auto& [i, reply] : fork_rows) {
    Row row{.reply = reply};
    row.chosen = {chosen[next++]};
    forks.push_back(std::move(row));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (items[i].role == Role::Prefill) after_prefill(rows[i].reply);
    if (!rows[i].chosen.empty()) accept(rows[i], logits, batch_.first_logits(i));
  }
  for (size_t i = 0; i < forks.size(); ++i) accept(forks[i], logits, batch_.first_logits(fork_rows[i].first));
}

// Snapshots and pages of what a prefill chunk computed.
void EngineCore::after_prefill(const ReplyPtr& reply) {
  if (!cache_.enabled()) return;
  Reply& r = *reply;
  const int64_t length = r.length();
  for (const SnapshotPoint& p : r.snapshot_points) {
    if (p.position != length) continue;
    // Another may have come here first.
    const auto ids = std::span<const int32_t>(r.ids).first(static_cast<size_t>(length));
    auto snapshot = cache_.index().snapshot_at(ids);
    if (!snapshot) snapshot = std::make_shared<const Snapshot>(r.sequence->snapshot());
    cache_.add(*r.sequence, length, std::move(snapshot), p.kind);
  }
}

// Replies of the same request that have not begun: as many as there is room for go on from here, the others find
// the prompt in the prefix cache when their turn comes.
void EngineCore::fork_siblings(const ReplyPtr& reply, std::vector<ReplyPtr>& forked) {
  if (reply->request().n == 1) return;
  SequenceMemory& memory = model_.memory();
  const std::vector<ReplyPtr> waiting = waiting_;
  for (const ReplyPtr& w : waiting) {
    if (w->submission != reply->submission || w->phase != Phase::Waiting) continue;
    if (memory.state.n_free() == 0 || !cache_.make_room(2)) return;
    auto sequence = reply->sequence->fork();
    if (!sequence) return;
    w->sequence = std::move(sequence);
    w->phase = Phase::Running;
    w->started = Clock::now();
    w->cached_tokens = w->prompt_size();
    stats_.prompt_tokens += w->prompt_size();
    stats_.cached_tokens += w->prompt_size();
    std::erase(waiting_, w);
    running_.push_back(w);
    forked.push_back(w);
  }
}

// Verifies and commits: the ids chosen for the rows count up to the first that a draft did not foresee.
void EngineCore::accept(Row& row, Tensor logits, int64_t first_row) {
  Reply& r = *row.reply;
  const Request& request = r.request();
  const bool decode = !row.ids.empty();
  std::vector<int32_t> said;
  std::vector<TokenLogprob> logprobs;
  bool ends = false, failed = false, stopped = false;
  for (size_t j = 0; j < row.chosen.size() && !ends; ++j) {
    const int32_t id = row.chosen[j];
    if (id < 0) {
      failed = ends = true;
      break;
    }
    said.push_back(id);
    if (request.sampling.n_logprobs >= 0)
      logprobs.push_back(
          chooser_.logprob(logits, first_row + static_cast<int64_t>(j), id, request.sampling.n_logprobs));
    const int64_t at = r.reply_size() + static_cast<int64_t>(said.size()) - 1;
    stopped = std::find(request.stop_ids.begin(), request.stop_ids.end(), id) != request.stop_ids.end();
    ends = ends_reply(request, id, at);
    if (j >= row.drafts.size() || row.drafts[j] != id) break;
  }
  const auto n_said = static_cast<int32_t>(said.size());

  if (!row.drafts.empty()) {
    const auto drafted = static_cast<int>(row.drafts.size());
    int accepted = 0;
    while (accepted < drafted && accepted < n_said && said[accepted] == row.drafts[accepted]) ++accepted;
    r.drafted += drafted;
    r.accepted += accepted;
    if (row.source != DraftSource::Forced) {
      for (int i = 0; i < drafted; ++i) ++stats_.drafted[i];
      for (int i = 0; i < accepted; ++i) ++stats_.accepted[i];
      DraftTally& tally = row.source == DraftSource::Block ? stats_.block_drafts : stats_.lookup_drafts;
      tally.drafted += drafted;
      tally.accepted += accepted;
      // A reply that ended says nothing about the drafts behind its end.
      const int judged = ends ? std::min(drafted, n_said) : drafted;
      const int bucket = Acceptance::bucket(row.source, row.match);
      r.acceptance.observe(bucket, judged, accepted);
      acceptance_.observe(bucket, judged, accepted);
    }
  }
  if (!failed || n_said > 0) say(r, said, std::move(logprobs));
  if (decode) r.sequence->commit(n_said);  // the drafted ids are in ids() by now
  if (failed)
    return end(row.reply, FinishReason::Error,
               "no token can be chosen: the model's output is not a number, or nothing is allowed");
  if (!decode && cache_.enabled()) {
    // The whole prompt is known to be sound now: later prompts can tell how far they agree with it.
    const int64_t whole = r.prompt_size() / kPageTokens * kPageTokens;
    cache_.add(*r.sequence, whole, nullptr, SnapshotKind::Turn);
  }
  if (ends) end(row.reply, stopped ? FinishReason::Stop : FinishReason::Length, "");
}

void EngineCore::say(Reply& r, std::span<const int32_t> ids, std::vector<TokenLogprob> logprobs) {
  if (ids.empty()) return;
  if (r.reply_size() == 0) r.first_token = Clock::now();
  const bool penalties = has_penalties(r.request().sampling);
  for (const int32_t id : ids) {
    r.ids.push_back(id);
    // Ids that the thinking budget dictates stand whatever the grammar says; it goes on behind them.
    r.grammar.take(id);
    if (penalties) count_id(r.seen_ids, r.seen_counts, id);
  }
  r.sequence->append(ids);
  stats_.completion_tokens += static_cast<int64_t>(ids.size());
  Event event;
  event.request = r.submission->id;
  event.index = r.index;
  event.ids.assign(ids.begin(), ids.end());
  event.logprobs = std::move(logprobs);
  event.usage = usage(r);
  r.submission->sink(event);
}

Usage EngineCore::usage(const Reply& r) const {
  Usage u;
  u.prompt_tokens = r.prompt_size();
  u.cached_tokens = r.cached_tokens;
  u.completion_tokens = r.reply_size();
  u.drafted_tokens = r.drafted;
  u.accepted_tokens = r.accepted;
  const auto now = r.phase == Phase::Ended ? r.ended : Clock::now();
  const bool started = r.started != Clock::time_point{};
  const bool spoke = r.first_token != Clock::time_point{};
  u.queue_seconds = seconds_between(r.submission->submitted, started ? r.started : now);
  if (started) u.prefill_seconds = seconds_between(r.started, spoke ? r.first_token : now);
  if (spoke) u.decode_seconds = seconds_between(r.first_token, now);
  return u;
}

}  // namespace quern
