#include "engine/engine_core.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/state_origin.h"

namespace quern {
namespace {

// A prefix in flight is waited for when it saves at least this many tokens.
constexpr int64_t kWorthWaiting = 128;

int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
int64_t whole_pages(int64_t tokens) { return tokens / kPageTokens * kPageTokens; }

// The largest resume point: at least one prompt row must run, for its logits.
int64_t resume_limit(const Reply& reply) { return whole_pages(reply.prompt_size() - 1); }

[[noreturn]] void invalid(const std::string& message) {
  throw SubmitError(SubmitError::Kind::Invalid, message);
}

void check_range(const char* field, double value, double low, double high) {
  if (!(value >= low && value <= high))
    invalid(fmt::format("{}: expected {} to {}, found {}", field, low, high, value));
}

bool comes_before(const Reply& a, const Reply& b) {
  const auto effective = [](const Reply& r) { return r.request().priority + r.waited_steps / kAgingSteps; };
  return effective(a) != effective(b) ? effective(a) > effective(b) : a.key < b.key;
}

}  // namespace

EngineCore::EngineCore(Model& model, const EngineOptions& options)
    : model_(model),
      options_(options),
      share_replies_(options.prefix_cache &&
                     (options.reuse_replies || model.stream().device().type == DeviceType::Cpu)),
      batch_(model.stream().device(), model.options().batch),
      chooser_(model.stream(), model.config().vocab,
               int64_t{model.options().n_slots} * (kMaxDrafts + 1) + 256),
      cache_(model.memory(), options,
             options.prefix_cache && !options.snapshot_directory.empty()
                 ? fingerprint(state_origin(model, options.reuse_replies))
                 : "") {
  const ModelOptions& m = model.options();
  QUERN_CHECK(m.batch.rows >= kPageTokens + int64_t{m.n_slots} * (kMaxDrafts + 1) &&
                  m.batch.segments >= m.n_slots && m.batch.logits >= int64_t{m.n_slots} * (kMaxDrafts + 1),
              "the largest step holds a chunk and a full draft of every slot");
  QUERN_CHECK(options.snapshot_interval > 0 && options.snapshot_interval % kPageTokens == 0,
              "snapshots lie on multiples of 64");
  limits_.context = std::min(m.batch.context, model.config().max_positions);
  limits_.vocab = static_cast<int32_t>(model.config().vocab);
  limits_.max_running = m.n_slots;
  limits_.max_queue = options.max_queue;
  stats_.drafted.assign(kMaxDrafts, 0);
  stats_.accepted.assign(kMaxDrafts, 0);
}

EngineCore::~EngineCore() { end_all(); }

void EngineCore::check(const Request& r) const {
  if (r.prompt.empty()) invalid("prompt: expected at least one token");
  const auto id_in_range = [&](const char* field, int32_t id) {
    if (id < 0 || id >= limits_.vocab)
      invalid(fmt::format("{}: token id {} is outside the vocabulary of {}", field, id, limits_.vocab));
  };
  for (const int32_t id : r.prompt) id_in_range("prompt", id);
  if (r.max_tokens < 1) invalid(fmt::format("max_tokens: expected at least 1, found {}", r.max_tokens));
  if (r.n < 1 || r.n > std::max(limits_.max_running, limits_.max_queue))
    invalid(
        fmt::format("n: expected 1 to {}, found {}", std::max(limits_.max_running, limits_.max_queue), r.n));
  const auto size = static_cast<int64_t>(r.prompt.size());
  if (size >= limits_.context || r.max_tokens > limits_.context - size)
    invalid(fmt::format("prompt: {} tokens and a reply of up to {} exceed the context of {}", size,
                        r.max_tokens, limits_.context));
  if (const int64_t pages = pages_for(size + r.max_tokens); pages > model_.memory().pages.total())
    invalid(fmt::format("prompt: {} tokens and a reply of up to {} take {} pages of cache, there are {}",
                        size, r.max_tokens, pages, model_.memory().pages.total()));
  const SamplingParams& p = r.sampling;
  check_range("temperature", p.temperature, 0, 1e6);
  check_range("top_p", p.top_p, 0, 1);
  check_range("min_p", p.min_p, 0, 1);
  check_range("top_k", p.top_k, 0, INT32_MAX);
  check_range("repetition_penalty", p.repetition_penalty, 1e-6, 1e6);
  check_range("presence_penalty", p.presence_penalty, -1e6, 1e6);
  check_range("frequency_penalty", p.frequency_penalty, -1e6, 1e6);
  check_range("logprobs", p.n_logprobs, -1, limits_.vocab);
  for (const auto& [id, bias] : p.logit_bias) {
    id_in_range("logit_bias", id);
    if (std::isnan(bias) || bias == HUGE_VALF)
      invalid(fmt::format("logit_bias: expected a number or -inf for token id {}, found {}", id, bias));
  }
  for (const int32_t id : r.thinking_close) id_in_range("thinking_close", id);
  if (r.thinking_budget >= 0 && std::find(r.thinking_close.begin(), r.thinking_close.end(),
                                          r.thinking_end_id) == r.thinking_close.end())
    invalid("thinking_budget: the ids that close the thinking do not hold its end");
  if (r.grammar) {
    if (r.grammar->vocabulary().size() > limits_.vocab)
      invalid(fmt::format("grammar: made for {} tokens, the model has {}", r.grammar->vocabulary().size(),
                          limits_.vocab));
    if (r.grammar_after_id >= 0) id_in_range("grammar_after_id", r.grammar_after_id);
  }
  for (const int64_t point : r.snapshot_points)
    if (point < 0 || point > size)
      invalid(fmt::format("snapshot_points: expected 0 to {}, found {}", size, point));
}

void EngineCore::submit(std::shared_ptr<const Submission> submission) {
  ++stats_.requests;
  for (int32_t i = 0; i < submission->request.n; ++i) {
    auto reply = std::make_shared<Reply>();
    reply->submission = submission;
    reply->index = i;
    reply->key = ++keys_;
    reply->ids = submission->request.prompt;
    reply->acceptance = acceptance_;
    reply->grammar = GrammarPlace(submission->request);
    if (has_penalties(submission->request.sampling)) start_counts(*reply);
    set_snapshot_points(*reply);
    waiting_.push_back(std::move(reply));
  }
}

// The first point is the end of the system prompt; of the others the last two and the prompt's own end count,
// and every interval: more would only cut the prefill into small chunks.
void EngineCore::set_snapshot_points(Reply& reply) const {
  if (!options_.prefix_cache) return;
  std::vector<int64_t> wished;
  for (const int64_t p : reply.request().snapshot_points)
    if (whole_pages(p) > 0) wished.push_back(whole_pages(p));
  std::sort(wished.begin(), wished.end());
  std::map<int64_t, SnapshotKind> points;
  const auto want = [&](int64_t position, SnapshotKind kind) {
    if (position <= 0) return;
    const auto [it, fresh] = points.emplace(position, kind);
    if (!fresh) it->second = std::max(it->second, kind);
  };
  if (!wished.empty()) want(wished.front(), SnapshotKind::Pinned);
  for (size_t i = wished.size() > 2 ? wished.size() - 2 : 0; i < wished.size(); ++i)
    want(wished[i], SnapshotKind::Turn);
  want(whole_pages(reply.prompt_size()), SnapshotKind::Turn);
  for (int64_t p = options_.snapshot_interval; p <= reply.prompt_size(); p += options_.snapshot_interval)
    want(p, SnapshotKind::Interval);
  for (const auto& [position, kind] : points) reply.snapshot_points.push_back({position, kind});
}

int64_t EngineCore::next_stop(const Reply& reply) const {
  for (const SnapshotPoint& p : reply.snapshot_points)
    if (p.position > reply.length()) return p.position;
  return reply.prompt_size();
}

void EngineCore::cancel(RequestId id) {
  for (auto* list : {&waiting_, &running_})
    for (const ReplyPtr& r : *list)
      if (r->submission->id == id) r->cancelled = true;
}

void EngineCore::end_cancelled() {
  for (const auto* list : {&waiting_, &running_}) {
    const std::vector<ReplyPtr> now = *list;
    for (const ReplyPtr& r : now)
      if (r->cancelled) end(r, FinishReason::Cancelled, "");
  }
}

void EngineCore::end_all() {
  for (const auto* list : {&waiting_, &running_})
    for (const ReplyPtr& r : *list) r->cancelled = true;
  end_cancelled();
}

void EngineCore::end(const ReplyPtr& reply, FinishReason reason, const std::string& error) {
  if (reply->phase == Phase::Ended) return;
  // A sequence that is swapped out has no pages to share.
  if (share_replies_ && reply->reply_snapshot && reason != FinishReason::Error && !reply->sequence->swapped())
    cache_.add(*reply->sequence, reply->reply_snapshot->position, reply->reply_snapshot, SnapshotKind::Turn);
  reply->ended = Clock::now();
  reply->phase = Phase::Ended;
  reply->reply_snapshot = nullptr;
  Event event;
  event.request = reply->submission->id;
  event.index = reply->index;
  event.finished = true;
  event.reason = reason;
  event.error = error;
  event.usage = usage(*reply);
  reply->sequence = nullptr;
  std::erase(waiting_, reply);
  std::erase(running_, reply);
  (reason == FinishReason::Cancelled ? stats_.cancelled
   : reason == FinishReason::Error   ? stats_.failed
                                     : stats_.finished) += 1;
  reply->submission->sink(event);
}

void EngineCore::fail_all(const std::string& error) {
  for (const auto* list : {&waiting_, &running_}) {
    const std::vector<ReplyPtr> now = *list;
    for (const ReplyPtr& r : now) end(r, FinishReason::Error, error);
  }
}

EngineCore::ReplyPtr EngineCore::find(const std::vector<ReplyPtr>& list, uint64_t key) const {
  for (const ReplyPtr& r : list)
    if (r->key == key) return r;
  return nullptr;
}

void EngineCore::post(std::function<void()> work) {
  {
    const std::lock_guard lock(posted_mutex_);
    posted_.push_back(std::move(work));
  }
  if (wake_) wake_();
}

void EngineCore::run_posted() {
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock(posted_mutex_);
    posted.swap(posted_);
  }
  for (const auto& work : posted) work();
}

// What the prefix cache and the disk know of a waiting prompt.
void EngineCore::consider(Reply& reply, std::span<const ReplyPtr> before) {
  if (reply.match_generation != cache_.index().generation()) {
    const PrefixMatch match = cache_.index().match(reply.ids, resume_limit(reply));
    reply.match_tokens = match.tokens;
    reply.match_common = match.common;
    reply.match_generation = cache_.index().generation();
  }
  if (reply.disk == Reply::Disk::Untried && !waits_for_another(reply, before)) {
    reply.disk = Reply::Disk::Done;
    const int64_t stored = cache_.find_on_disk(reply.request().prompt, resume_limit(reply));
    if (stored > reply.match_tokens) {
      reply.disk = Reply::Disk::Reading;
      cache_.fetch(
          reply.request().prompt, stored,
          [this, weak = std::weak_ptr<Reply>(find(waiting_, reply.key))](std::optional<StoredPrefix> prefix) {
            post([this, weak, prefix = std::make_shared<std::optional<StoredPrefix>>(std::move(prefix))] {
              const ReplyPtr r = weak.lock();
              if (!r || r->phase != Phase::Waiting) return;
              r->disk = Reply::Disk::Done;
              if (*prefix && cache_.adopt(r->request().prompt, **prefix))
                ++stats_.cache_disk_hits;
              else if (*prefix)
                log(LogLevel::Debug, "no room for a prefix of {} tokens from disk", (*prefix)->position);
            });
          });
    }
  }
}

// Whether a reply ahead of this one is about to compute a prefix of its prompt. Then that one takes a snapshot
// where the two part, and this one begins there.
bool EngineCore::waits_for_another(Reply& reply, std::span<const ReplyPtr> before) {
  if (!cache_.enabled()) return false;
  const auto shares = [&](Reply& other) {
    if (other.submission == reply.submission) return other.index == 0 && other.prefilling();
    if (!other.prefilling()) return false;
    const std::vector<int32_t>&a = reply.ids, &b = other.ids;
    const auto most =
        std::min<size_t>(static_cast<size_t>(resume_limit(reply)), static_cast<size_t>(other.prompt_size()));
    const int64_t common = whole_pages(
        std::mismatch(a.begin(), a.begin() + static_cast<int64_t>(most), b.begin()).first - a.begin());
    if (common < reply.match_tokens + kWorthWaiting || other.length() >= common) return false;
    auto& points = other.snapshot_points;
    const auto at = std::lower_bound(points.begin(), points.end(), common,
                                     [](const SnapshotPoint& p, int64_t c) { return p.position < c; });
    if (at == points.end() || at->position != common) points.insert(at, {common, SnapshotKind::Interval});
    return true;
  };
  for (const ReplyPtr& r : running_)
    if (shares(*r)) return true;
  for (const ReplyPtr& r : before)
    if (shares(*r)) return true;
  return false;
}

SchedulerInput EngineCore::scheduler_input() {
  const PagePool& pool = model_.memory().pages;
  SchedulerInput in;
  in.free_pages = cache_.available();
  in.free_slots = model_.memory().state.n_free();
  in.max_rows = batch_.capacity().rows;
  in.step = steps_;
  in.cost = meter_.model();

  std::sort(waiting_.begin(), waiting_.end(),
            [](const ReplyPtr& a, const ReplyPtr& b) { return comes_before(*a, *b); });
  // Nobody is overtaken, so only the head of the queue needs a close look.
  const auto looked_at = static_cast<size_t>(std::max<int64_t>(4, in.free_slots + 2));
  for (size_t i = 0; i < waiting_.size(); ++i) {
    Reply& r = *waiting_[i];
    Waiting w{.id = r.key,
              .priority = r.request().priority,
              .arrival = r.key,
              .waited_steps = r.waited_steps,
              .prompt_end = r.prompt_size()};
    w.pages = pages_for(std::max(r.prompt_size(), r.length()) + 1);
    if (r.phase == Phase::Waiting && i < looked_at) {
      const auto before = std::span<const ReplyPtr>(waiting_).first(i);
      consider(r, before);
      w.ready = r.disk != Reply::Disk::Reading && !waits_for_another(r, before);
      // Known pages that somebody runs on cost nothing; the others count as free until they are taken.
      if (w.ready && r.match_tokens > 0)
        for (const int32_t page : cache_.index().match(r.ids, resume_limit(r)).pages)
          if (pool.refs(page) > 1) --w.pages;
      w.position = r.match_tokens;
    } else {
      w.position = r.length();
    }
    w.chunk_limit = r.prompt_size();
    for (const SnapshotPoint& p : r.snapshot_points)
      if (p.position > w.position) {
        w.chunk_limit = p.position;
        break;
      }
    in.waiting.push_back(w);
  }

  int deepest = 0;
  wishes_.clear();
  for (const ReplyPtr& p : running_) {
    Reply& r = *p;
    Running out{.id = r.key,
                .priority = r.request().priority,
                .arrival = r.key,
                .waited_steps = r.waited_steps,
                .pages = static_cast<int64_t>(r.sequence->pages().size()),
                .position = r.length(),
                .chunk_limit = next_stop(r),
                .prompt_end = r.prompt_size()};
    for (const int32_t page : r.sequence->pages())
      if (pool.refs(page) == (cache_.index().holds(page) ? 2 : 1)) ++out.pages_freed;
    if (!out.prefilling()) {
      Wish wish = wish_for(r, static_cast<int64_t>(running_.size()));
      out.drafts = wish.depth;
      if (wish.source == DraftSource::Block) deepest = std::max(deepest, wish.depth);
      wishes_[r.key] = std::move(wish);
    }
    in.running.push_back(out);
  }
  // The draft block's passes are part of the step, but not of the cost model.
  in.max_stall = std::max(0.0, options_.max_stall_ms / 1e3 - deepest * pass_seconds_);
  return in;
}

bool EngineCore::admit(const ReplyPtr& reply) {
  Reply& r = *reply;
  SequenceMemory& memory = model_.memory();
  const int64_t end = std::max(r.prompt_size(), r.length()) + 1;
  if (r.phase == Phase::Swapped) {
    if (!cache_.make_room(pages_for(end))) return false;
    if (!r.sequence->swap_in()) return false;
    if (!r.sequence->reserve(end)) QUERN_CHECK(false, "the room that was made is gone");
  } else {
    auto sequence = Sequence::create(memory);
    if (!sequence) return false;
    const PrefixMatch match = cache_.index().match(r.ids, resume_limit(r));
    if (match.tokens > 0)
      sequence->restore(std::span<const int32_t>(r.ids).first(static_cast<size_t>(match.tokens)), match.pages,
                        *match.snapshot);
    if (!cache_.make_room(sequence->pages_missing(end)) || !sequence->reserve(end)) return false;
    sequence->append(std::span<const int32_t>(r.ids).subspan(static_cast<size_t>(match.tokens)));
    r.sequence = std::move(sequence);
    r.cached_tokens = match.tokens;
    r.started = Clock::now();
    // Prompts that went on differently from here: worth a snapshot where they part.
    const int64_t parting = std::min(whole_pages(match.common), resume_limit(r));
    if (options_.prefix_cache && parting >= match.tokens + kWorthWaiting &&
        std::none_of(r.snapshot_points.begin(), r.snapshot_points.end(),
                     [&](const SnapshotPoint& p) { return p.position == parting; })) {
      r.snapshot_points.push_back({parting, SnapshotKind::Interval});
      std::sort(r.snapshot_points.begin(), r.snapshot_points.end(),
                [](const SnapshotPoint& a, const SnapshotPoint& b) { return a.position < b.position; });
    }
    stats_.prompt_tokens += r.prompt_size();
    stats_.cached_tokens += match.tokens;
    ++(match.tokens > 0 ? stats_.cache_hits : stats_.cache_misses);
  }
  r.phase = Phase::Running;
  std::erase(waiting_, reply);
  running_.push_back(reply);
  return true;
}

void EngineCore::preempt(const ReplyPtr& reply) {
  reply->sequence->swap_out();
  reply->phase = Phase::Swapped;
  std::erase(running_, reply);
  waiting_.push_back(reply);
  ++stats_.preemptions;
}

bool EngineCore::step() {
  run_posted();
  end_cancelled();
  if (idle()) return false;

  const SchedulerInput in = scheduler_input();
  const Plan plan = plan_step(in);
  for (const uint64_t key : plan.preempt) preempt(find(running_, key));
  for (const uint64_t key : plan.admit)
    if (!admit(find(waiting_, key))) break;  // it waits on

  std::vector<Row> rows;
  const auto add = [&](const PlannedRows& planned) {
    const ReplyPtr reply = find(running_, planned.id);
    if (!reply) return;
    const int64_t length = reply->length();
    Row row{.reply = reply, .n_rows = planned.rows};
    if (reply->prefilling()) {
      // Admission may have found another resume point than the plan knew.
      int64_t end = std::min(length + row.n_rows, next_stop(*reply));
      if (end < reply->prompt_size()) end = whole_pages(end);
      if (end <= length) return;
      row.n_rows = end - length;
    } else {
      const int64_t missing = reply->sequence->pages_missing(length + row.n_rows);
      if (missing > 0 && !(cache_.make_room(missing) && reply->sequence->reserve(length + row.n_rows))) {
        row.n_rows = 1;
        const int64_t one = reply->sequence->pages_missing(length + 1);
        if (one > 0 && !(cache_.make_room(one) && reply->sequence->reserve(length + 1)))
          return;  // the next plan preempts somebody
      }
    }
    rows.push_back(std::move(row));
  };
  for (const PlannedRows& p : plan.decode) add(p);
  for (const PlannedRows& p : plan.prefill) add(p);
  for (const ReplyPtr& r : waiting_) ++r->waited_steps;
  ++steps_;
  if (rows.empty()) return !plan.preempt.empty();

  draft(rows);
  run(rows);
  ++stats_.steps;
  return true;
}

EngineStats EngineCore::stats() const {
  EngineStats s = stats_;
  const SequenceMemory& memory = model_.memory();
  s.running = static_cast<int64_t>(running_.size());
  for (const ReplyPtr& r : waiting_) ++(r->phase == Phase::Swapped ? s.preempted : s.waiting);
  s.pages_total = memory.pages.total();
  s.pages_used = memory.pages.used();
  s.slots_total = memory.state.n_slots();
  s.slots_used = memory.state.n_slots() - memory.state.n_free();
  s.cache_bytes = cache_.index().snapshot_bytes();
  s.cache_disk_bytes = cache_.disk_bytes();
  s.snapshots = cache_.index().n_snapshots();
  for (int i = 0; i < kRequestKinds; ++i) {
    s.block_drafts.on[i] = options_.draft_block && model_.has_drafts() && block_switch_[i].on();
    s.block_drafts.switches[i] = block_switch_[i].changes();
    s.lookup_drafts.on[i] = options_.draft_lookup && lookup_switch_[i].on();
    s.lookup_drafts.switches[i] = lookup_switch_[i].changes();
  }
  s.cache_evicted_pages = cache_.index().n_evicted_pages();
  s.cache_evicted_snapshots = cache_.index().n_evicted_snapshots();
  return s;
}

}  // namespace quern
