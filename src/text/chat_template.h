// A conversation as the prompt text a model was trained on: the model's own Jinja template, run by our engine
// (jinja_interpreter.h), which prints what Python's jinja2 prints as Hugging Face sets it up.
//
// The result is in segments: what the template wrote is trusted, so that its control tokens become control tokens; what
// came from messages, tools and variables is not, so that `<|im_end|>` typed by a user stays eight words of text.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/jinja_ast.h"
#include "text/tokenizer.h"

namespace quern {

struct PromptSegment {
  std::string text;
  bool trusted = false;
};

struct RenderedPrompt {
  std::vector<PromptSegment> segments;
  // Byte offsets in text() after which a message is complete, ascending: where a snapshot of the model's state serves
  // the next turn. The rule: where the output stands after the last turn that a `for` loop of the template, writing
  // straight to the output, makes over that message. A leading system message is usually written before the loop
  // and skipped in it, so its end counts too. A template that writes its messages inside a macro has none.
  std::vector<size_t> message_ends;

  std::string text() const;
  void append(std::string_view text, bool trusted);  // to the last segment where the trust is the same
  // The last block of reasoning that the template itself opened is still open: what the model writes starts inside it.
  bool opens_thinking() const;
};

// The prompt's ids: control tokens recognised in trusted segments only.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt);

class ChatTemplate {
 public:
  // Throws Error("chat template line N: …") where the source is not a template. The tokens are what bos_token and
  // eos_token print; empty ones are undefined in the template.
  explicit ChatTemplate(std::string source, std::string bos = "", std::string eos = "");
  // Of a model. A Hugging Face folder or a .safetensors file in one: chat_template.jinja, else the
  // "chat_template" of tokenizer_config.json; GGUF: its key tokenizer.chat_template.
  static ChatTemplate from_model(const std::filesystem::path& model);

  // messages and tools: arrays as OpenAI's API has them, prepared as chat_messages.h does (null or empty: none);
  // variables: an object, add_generation_prompt and enable_thinking among them. raise_exception, and a template that
  // takes more than JinjaLimits allows, is an Error.
  RenderedPrompt render(const Json& messages, const Json& tools, const Json& variables) const;

  // Found by rendering a probe: a system message after the first is written and not refused.
  bool takes_late_system() const { return takes_late_system_; }
  const std::string& source() const { return source_; }

 private:
  std::string source_, bos_, eos_;
  std::shared_ptr<const JinjaBody> body_;
  bool takes_late_system_ = false;
};

// The chat template of a Hugging Face folder: chat_template.jinja, or tokenizer_config.json's (of several the one named
// default); empty where it has none.
std::string chat_template_source(const std::filesystem::path& folder);

}  // namespace quern
