// The engine without its thread: waiting and running replies, and one step at a time. Everything that decides
// what a reply says is here; model_engine.h adds the thread, the queue and the public face. All calls but post
// come from one thread.
//
// A step: plan (engine/scheduler.h) → swap out, admit → draft → forward → choose ids → commit → snapshots, ends.
// Drafts, pages of others, chunk sizes and neighbours decide when an id is computed, never which id it is.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/cost_model.h"
#include "engine/engine.h"
#include "engine/engine_options.h"
#include "engine/prefix_cache.h"
#include "engine/reply.h"
#include "engine/scheduler.h"
#include "engine/token_chooser.h"
#include "model/batch.h"
#include "model/model.h"

namespace quern {

class EngineCore {
 public:
  EngineCore(Model& model, const EngineOptions& options);
  ~EngineCore();
  EngineCore(const EngineCore&) = delete;
  EngineCore& operator=(const EngineCore&) = delete;

  // Throws SubmitError naming the field. Safe from any thread.
  void check(const Request& request) const;
  EngineLimits limits() const { return limits_; }

  void submit(std::shared_ptr<const Submission> submission);
  void cancel(RequestId id);                // takes effect at the next step
  void end_all();                           // everything ends as cancelled
  void fail_all(const std::string& error);  // or with an error

  bool idle() const { return waiting_.empty() && running_.empty(); }
  // Runs one step. False if there was nothing it could run: all that waits, waits for the disk.
  bool step();
  // Work for the engine's thread, from any thread; runs at the next step. `wake` is called on arrival.
  void post(std::function<void()> work);
  void run_posted();
  // Seconds, ever growing, that steps are measured by. Tests replay a run by giving it the same ones.
  void set_clock(std::function<double()> clock) { clock_ = std::move(clock); }
  void set_wake(std::function<void()> wake) { wake_ = std::move(wake); }

  EngineStats stats() const;
  int64_t n_entered() const { return static_cast<int64_t>(keys_); }  // replies, ever
  int64_t n_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  PrefixCache& cache() { return cache_; }
  const CostModel& cost() const { return meter_.model(); }

 private:
  using ReplyPtr = std::shared_ptr<Reply>;
  // A reply's part of the step at hand.
  struct Row {
    ReplyPtr reply;
    int64_t n_rows = 0;
    DraftSource source = DraftSource::None;
    int match = 0;
    std::vector<int32_t> drafts{};
    std::vector<int32_t> ids{};  // of the rows
    std::vector<int32_t> chosen{};
  };
  struct Wish {  // for drafts
    DraftSource source = DraftSource::None;
    int depth = 0, match = 0;
    std::vector<int32_t> ids;  // look-up and forced ids; the draft block finds its own
  };

  // engine_core.cpp: who runs
  void end_cancelled();
  void consider(Reply& reply, std::span<const ReplyPtr> before);
  bool waits_for_another(Reply& reply, std::span<const ReplyPtr> before);
  SchedulerInput scheduler_input();
  bool admit(const ReplyPtr& reply);
  void preempt(const ReplyPtr& reply);
  void set_snapshot_points(Reply& reply) const;
  int64_t next_stop(const Reply& reply) const;
  void end(const ReplyPtr& reply, FinishReason reason, const std::string& error);
  ReplyPtr find(const std::vector<ReplyPtr>& list, uint64_t key) const;

  // engine_step.cpp: what they compute
  Wish wish_for(Reply& reply, int64_t n_sequences);
  void note_drafts(DraftSource source, int bucket, const Request& request, bool pays, int64_t n_sequences);
  void draft(std::vector<Row>& rows);
  void run(std::vector<Row>& rows);
  void accept(Row& row, Tensor logits, int64_t first_row);
  void say(Reply& reply, std::span<const int32_t> ids, std::vector<TokenLogprob> logprobs);
  void after_prefill(const ReplyPtr& reply);
  void fork_siblings(const ReplyPtr& reply, std::vector<ReplyPtr>& forked);
  Usage usage(const Reply& reply) const;

  Model& model_;
  EngineOptions options_;
  EngineLimits limits_;
  bool share_replies_;
  Batch batch_;
  TokenChooser chooser_;
  PrefixCache cache_;
  CostMeter meter_;
  double pass_seconds_ = 0;  // of the draft block
  Acceptance acceptance_;    // over all requests: where a new one begins
  std::array<DraftSwitch, kRequestKinds> block_switch_, lookup_switch_;

  std::vector<ReplyPtr> waiting_, running_;
  std::map<uint64_t, Wish> wishes_;
  uint64_t keys_ = 0, steps_ = 0;
  EngineStats stats_;

  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;
  std::function<void()> wake_;
  std::function<double()> clock_ = [] {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  };
};

}  // namespace quern
