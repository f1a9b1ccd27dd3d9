// One request under way: hears the engine's events on the engine's thread and keeps no more of them than ids; turns
// them into pieces of text, reasoning and calls when polled. So a client that does not read holds back the turning,
// and costs four bytes a token.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/engine.h"
#include "server/content_logprobs.h"
#include "server/metrics.h"
#include "server/output_parser.h"
#include "server/reply.h"
#include "text/tokenizer.h"

namespace quern {

struct GenerationSetup {
  Engine* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  Metrics* metrics = nullptr;
  int32_t replies = 1;
  bool raw = false;       // the text as it is: no reasoning, no calls
  bool thinking = false;  // the reply starts inside reasoning
  Json tools;             // declared tools, or null
  bool one_call = false;  // the reply ends after its first call
  std::vector<std::string> stop;
  std::vector<int32_t> stop_ids;  // are not text
  int64_t prompt_tokens = 0;
  std::function<void()> wake;
};

class Generation {
 public:
  explicit Generation(GenerationSetup setup);

  // The engine's sink.
  void accept(const Event& event);
  void submitted(RequestId id);

  // Hands what has come to the writer; of a stream so much as one write should have, and wakes for the rest. From one
  // thread at a time.
  void poll(ReplyWriter& writer, std::string& out);
  // After poll: every reply has ended, or the whole has failed.
  bool finished() const { return open_ == 0 || error_; }
  const std::optional<ApiError>& error() const { return error_; }
  ReplyUsage usage() const;

  // Any thread; more than once does no harm.
  void cancel();
  void fail(const ApiError& error);
  void close();  // hears nothing more
  std::chrono::steady_clock::time_point begun() const { return begun_; }

 private:
  struct Item {
    int32_t reply = 0;
    std::vector<int32_t> ids;
    std::vector<TokenLogprob> logprobs;
    bool finished = false;
    FinishReason reason = FinishReason::Stop;
    std::string error;
    Usage usage;
  };
  struct ReplyState {
    OutputParser parser;
    int32_t calls = 0;
    int64_t tokens = 0, reasoning_tokens = 0;
    bool call_open = false, ended = false;
    std::string stop_string;  // the one that matched
    ContentLogprobs logprobs;
    Usage usage;
  };

  bool take(Item& item, ReplyWriter& writer, std::string& out);
  void put_back(std::vector<Item>::iterator from, std::vector<Item>& items);
  void take_token(int32_t id, const TokenLogprob* logprob, int32_t reply, ReplyWriter& writer,
                  std::string& out);
  void hand_over(const std::vector<OutputEvent>& events, int32_t reply, ReplyWriter& writer,
                 std::string& out);
  void end_reply(int32_t reply, EndReason reason, ReplyWriter& writer, std::string& out);
  LogprobEntry entry(int32_t id, const TokenLogprob& logprob) const;

  const GenerationSetup setup_;
  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::vector<Item> queue_;
  std::optional<ApiError> failure_;
  RequestId id_ = 0;
  bool cancelled_ = false, closed_ = false;
  std::chrono::steady_clock::time_point last_token_;
  bool any_token_ = false;

  // Of the polling thread.
  std::vector<ReplyState> replies_;
  int32_t open_;
  std::optional<ApiError> error_;
  bool writer_begun_ = false;
};

}  // namespace quern
