// A ChatRequest on its way to the engine: template → token segments → engine request, and the Generation that hears
// the engine's events. Any thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/chat_request.h"
#include "server/generation.h"
#include "server/metrics.h"
#include "server/request_parts.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

namespace quern {

// What a request that does not say gets; from generation_config.json and the command line.
struct ChatDefaults {
  SamplingParams sampling;
  std::vector<int32_t> end_ids;  // the ids that end a turn, the end-of-turn token first
  int64_t max_tokens = -1;       // of a reply; -1: the room left
};

class Chat {
 public:
  // The references must outlive this.
  Chat(Engine& engine, const Tokenizer& tokenizer, const ChatTemplate& chat_template, ChatDefaults defaults,
       Metrics& metrics);

  struct Prompt {
    std::vector<int32_t> ids;
    std::vector<int64_t> snapshot_points;
    bool thinking = false;  // the reply starts inside a block of reasoning
  };
  // Throws ApiError 400.
  Prompt prepare(const ChatRequest& request) const;
  std::string apply_template(const ChatRequest& request) const;

  // Submits it. `wake` is called, from any thread, when the Generation has something to poll. Throws ApiError: 400
  // where it can never run, 429 where the queue is full, 503 where the server is ending.
  std::shared_ptr<Generation> start(const ChatRequest& request, std::function<void()> wake);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  RequestLimits limits() const;

 private:
  ChatPrompt render(const ChatRequest& request) const;
  Prompt encode(const ChatRequest& request, const ChatPrompt& rendered) const;
  void set_sampling(const ChatRequest& from, SamplingParams& to) const;
  // The grammar of the answer's format or of a forced call; null: none. Compiled ones are kept, since clients send
  // the same schema with every request.
  GrammarPtr grammar_for(const ChatRequest& request, bool thinking);

  Engine& engine_;
  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  const ChatDefaults defaults_;
  Metrics& metrics_;
  int32_t thinking_end_id_ = -1;
  std::vector<int32_t> thinking_close_;

  std::mutex grammar_mutex_;
  GrammarVocabularyPtr grammar_vocabulary_;     // made when first needed
  std::map<std::string, GrammarPtr> grammars_;  // by kind and source
};

}  // namespace quern
