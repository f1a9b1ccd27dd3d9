#include "engine/scheduler.h"

#include <algorithm>

#include "ops/batch_view.h"

namespace quern {
namespace {

template <typename T>
int64_t effective_priority(const T& r) {
  return r.priority + r.waited_steps / kAgingSteps;
}

template <typename A, typename B>
bool before(const A& a, const B& b) {
  const int64_t pa = effective_priority(a), pb = effective_priority(b);
  return pa != pb ? pa > pb : a.arrival < b.arrival;
}

int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

class Planner {
 public:
  explicit Planner(const SchedulerInput& in)
      : in_(in), free_pages_(in.free_pages), free_slots_(in.free_slots), active_(in.running) {
    std::sort(active_.begin(), active_.end(), before<Running, Running>);
  }

  Plan plan() {
    grow();
    if (plan_.preempt.empty()) admit();
    choose_rows();
    return std::move(plan_);
  }

 private:
  void preempt_last() {
    const Running& victim = active_.back();
    plan_.preempt.push_back(victim.id);
    free_pages_ += victim.pages_freed;
    ++free_slots_;
    active_.pop_back();
  }

  // A page for every decoding sequence's next row. `active_` is in order, so whoever is preempted has not
  // been served yet.
  void grow() {
    for (size_t i = 0; i < active_.size(); ++i) {
      if (active_[i].prefilling()) continue;
      const int64_t need = pages_for(active_[i].position + 1) - active_[i].pages;
      while (need > free_pages_ && i < active_.size()) preempt_last();
      if (i >= active_.size()) break;
      if (need > 0) {
        free_pages_ -= need;
        active_[i].pages += need;
      }
    }
  }

  void admit() {
    std::vector<Waiting> waiting;
    for (const Waiting& w : in_.waiting)
      if (w.ready) waiting.push_back(w);
    std::sort(waiting.begin(), waiting.end(), before<Waiting, Waiting>);
    for (const Waiting& w : waiting) {
      if (!make_room(w)) break;
      free_pages_ -= w.pages;
      --free_slots_;
      plan_.admit.push_back(w.id);
      Running r{.id = w.id,
                .priority = w.priority,
                .arrival = w.arrival,
                .waited_steps = w.waited_steps,
                .pages = pages_for(std::max(w.position, w.prompt_end) + 1),
                .position = w.position,
                .chunk_limit = w.chunk_limit,
                .prompt_end = w.prompt_end};
      admitted_.push_back(r);
    }
  }

  bool make_room(const Waiting& w) {
    int64_t reserve = 0;
    for (const auto* list : {&active_, &admitted_})
      for (const Running& r : *list) reserve += r.prefilling() ? 0 : 1;
    if (w.pages + reserve <= free_pages_ && free_slots_ > 0) return true;
    // Would the room do if all that this one may preempt were gone?
    int64_t pages = free_pages_, slots = free_slots_;
    size_t victims = 0;
    while (victims < active_.size()) {
      const Running& victim = active_[active_.size() - 1 - victims];
      if (effective_priority(victim) >= w.priority) break;
      pages += victim.pages_freed;
      ++slots;
      reserve -= victim.prefilling() ? 0 : 1;
      ++victims;
      if (w.pages + reserve <= pages && slots > 0) {
        while (victims-- > 0) preempt_last();
        return true;
      }
    }
    return false;
  }

  void choose_rows() {
    for (const Running& r : admitted_) active_.push_back(r);
    std::sort(active_.begin(), active_.end(), before<Running, Running>);

    int64_t streams = 0;
    for (const Running& r : active_) streams += r.prefilling() ? 0 : 1;
    const bool prefilling = streams < static_cast<int64_t>(active_.size());

    // Drafts, best first, as far as pages, rows and the bound allow beside one chunk of prefill.
    const int64_t chunk = prefilling ? kPageTokens : 0;
    int64_t rows = streams;
    for (const Running& r : active_) {
      if (r.prefilling()) continue;
      int64_t drafts = std::clamp<int64_t>(r.drafts, 0, kMaxDrafts);
      const int64_t held = std::max(r.pages, pages_for(r.position + 1));
      const int64_t more = std::max<int64_t>(pages_for(r.position + 1 + drafts) - held, 0);
      if (more > free_pages_)
        drafts = held * kPageTokens - r.position - 1;
      else
        free_pages_ -= more;
      drafts = std::min(drafts, in_.max_rows - rows - chunk);
      while (drafts > 0 && prefilling && in_.cost.at_most(rows + drafts, chunk) > in_.max_stall) --drafts;
      drafts = std::max<int64_t>(drafts, 0);
      rows += drafts;
      plan_.decode.push_back({r.id, 1 + drafts});
    }
    if (prefilling) choose_chunks(rows, streams > 0);
  }

  void choose_chunks(int64_t decode_rows, bool bounded) {
    int64_t budget = std::max<int64_t>(in_.max_rows - decode_rows, kPageTokens) / kPageTokens * kPageTokens;
    if (bounded)
      while (budget > kPageTokens && in_.cost.at_most(decode_rows, budget) > in_.max_stall)
        budget -= kPageTokens;

    std::vector<const Running*> oldest;
    for (const Running& r : active_)
      if (r.prefilling()) oldest.push_back(&r);
    std::vector<const Running*> shortest = oldest;
    std::stable_sort(shortest.begin(), shortest.end(), [](const Running* a, const Running* b) {
      return a->prompt_end - a->position < b->prompt_end - b->position;
    });

    // The oldest has first claim on half the rows, then the shortest, then the oldest on what is left.
    std::vector<int64_t> given(oldest.size(), 0);
    const auto give = [&](const Running* r, int64_t most) {
      const auto i = static_cast<size_t>(std::find(oldest.begin(), oldest.end(), r) - oldest.begin());
      const int64_t start = r->position + given[i];
      int64_t end = std::min(start + most, r->chunk_limit);
      if (end < r->prompt_end) end = std::max(end / kPageTokens * kPageTokens, start);
      given[i] += end - start;
      budget -= end - start;
    };
    const bool one_chunk = budget < 2 * kPageTokens;
    if (!one_chunk) give(oldest.front(), budget / 2 / kPageTokens * kPageTokens);
    if (one_chunk && in_.step % 2 == 0) give(oldest.front(), budget);
    for (const Running* r : shortest) give(r, budget);
    for (size_t i = 0; i < oldest.size(); ++i)
      if (given[i] > 0) plan_.prefill.push_back({oldest[i]->id, given[i]});
  }

  const SchedulerInput& in_;
  int64_t free_pages_, free_slots_;
  std::vector<Running> active_;    // in order, best first
  std::vector<Running> admitted_;  // in this step
  Plan plan_;
};

}  // namespace

Plan plan_step(const SchedulerInput& in) { return Planner(in).plan(); }

}  // namespace quern
