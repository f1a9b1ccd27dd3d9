// A model on this machine with everything a conversation needs, and the options of `run` and `chat`.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/generation_config.h"
#include "engine/model_engine.h"
#include "model_flags.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace quern {

// Options left out take the model's own defaults (generation_config.json).
struct ReplyFlags {
  int64_t max_tokens = 2048;
  int64_t context = 0;  // 0: the model's limit, at most 32768
  bool greedy = false;
  std::optional<float> temperature, top_p, min_p, repetition_penalty;
  std::optional<int32_t> top_k;
  float presence_penalty = 0, frequency_penalty = 0;
  std::optional<uint64_t> seed;
  std::string system;
  bool no_thinking = false;
  std::string effort;
  int32_t max_drafts = -1;  // -1: the engine's choice
  void add_to(CLI::App& app);
};

struct LocalReply {
  std::vector<int32_t> ids;  // the id that ended it included
  FinishReason reason = FinishReason::Stop;
  Usage usage;
};

class LocalEngine {
 public:
  LocalEngine(const ModelFlags& model, const ReplyFlags& flags);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  // A conversation as a prompt, ready for the reply; `messages` as OpenAI's API has them, without the system message.
  ChatPrompt render(const Json& messages) const;
  std::vector<int32_t> encode(const ChatPrompt& prompt) const {
    return encode_prompt(tokenizer_, prompt.prompt);
  }
  bool is_end(int32_t id) const;

  // Blocks. `on_ids` gets new ids on the calling thread. `stop`, once true, ends the reply as cancelled. Throws Error
  // where the engine refuses or fails.
  LocalReply reply(std::vector<int32_t> prompt, const std::atomic<bool>& stop,
                   const std::function<void(std::span<const int32_t>)>& on_ids);

 private:
  ReplyFlags flags_;
  OpenModel open_;
  Tokenizer tokenizer_;
  std::optional<ChatTemplate> template_;
  std::string template_error_;  // why there is none
  GenerationConfig defaults_;
  std::vector<int32_t> end_ids_;
  int64_t context_ = 0;
  uint64_t seed_ = 0;
  std::optional<ModelEngine> engine_;
};

// Prints a reply as it comes: reasoning dimmed where standard output is a terminal.
class ReplyPrinter {
 public:
  ReplyPrinter(const Tokenizer& tokenizer, bool starts_thinking);
  void print(std::span<const int32_t> ids);
  void finish();

 private:
  void begin();
  void print_text(std::string_view text);
  void dim(bool on);

  Detokenizer detokenizer_;
  bool terminal_, thinking_, begun_ = false;
  std::string held_;  // what may be the start of </think>
};

}  // namespace quern
