#include "server/chat.h"

#include <fmt/core.h>

#include <algorithm>
#include <random>

#include "base/log.h"

namespace quern {
namespace {

// Errors of messages and templates start with the place: messages[3].content[0]: …
ApiError as_bad_request(const Error& error) {
  const std::string what = error.what();
  std::string param;
  if (what.starts_with("messages")) param = what.substr(0, what.find_first_of(": "));
  return {400, what, param};
}

// Of the compiled grammars that are kept for the next request.
constexpr size_t kGrammarBytes = size_t{256} << 20;

uint64_t random_seed() {
  static thread_local std::mt19937_64 engine{std::random_device{}()};
  return engine();
}

}  // namespace

Chat::Chat(Engine& engine, const Tokenizer& tokenizer, const ChatTemplate& chat_template,
           ChatDefaults defaults, Metrics& metrics)
    : engine_(engine),
      tokenizer_(tokenizer),
      template_(chat_template),
      defaults_(std::move(defaults)),
      metrics_(metrics) {
  if (const auto id = tokenizer.find_special("</think>")) {
    thinking_end_id_ = *id;
    thinking_close_ = tokenizer.encode("\n</think>\n\n", ControlTokens::Recognise);
  }
}

RequestLimits Chat::limits() const {
  RequestLimits limits;
  const EngineLimits engine = engine_.limits();
  limits.vocab = engine.vocab;
  limits.context = engine.context;
  if (engine.max_running > 0) limits.replies = std::min(limits.replies, engine.max_running);
  return limits;
}

ChatPrompt Chat::render(const ChatRequest& request) const {
  Json variables{Json::Object{}};
  variables.set("add_generation_prompt", true);
  std::optional<bool> thinking = request.thinking;
  // A budget asks for thinking; one of nothing asks for none.
  if (request.thinking_budget == 0) thinking = false;
  if (request.thinking_budget > 0 && !thinking) thinking = true;
  if (thinking) variables.set("enable_thinking", *thinking);
  if (request.effort && thinking.value_or(true)) variables.set("reasoning_effort", *request.effort);
  if (request.preserve_thinking) variables.set("preserve_thinking", *request.preserve_thinking);
  const bool offer = request.tools.is_array() && request.tool_use != ToolUse::None;
  try {
    return render_chat(template_, request.messages, offer ? request.tools : Json(), variables);
  } catch (const ApiError&) {
    throw;
  } catch (const Error& error) {
    throw as_bad_request(error);
  }
}

std::string Chat::apply_template(const ChatRequest& request) const { return render(request).prompt.text(); }

// Message by message, so that the number of tokens at each message's end is known. A cut before an added token
// changes nothing, since no merge crosses one; elsewhere no cut is made.
Chat::Prompt Chat::encode(const ChatRequest& request, const ChatPrompt& rendered) const {
  Prompt prompt;
  if (request.messages.is_null()) {
    prompt.ids = request.raw_ids;
    if (prompt.ids.empty()) prompt.ids = tokenizer_.encode(request.raw_text, ControlTokens::Recognise);
    return prompt;
  }
  prompt.thinking = rendered.thinking;
  std::vector<TextPiece> pieces;
  size_t at = 0;  // of the whole text
  auto end = rendered.prompt.message_ends.begin();
  const auto last = rendered.prompt.message_ends.end();
  for (const PromptSegment& segment : rendered.prompt.segments) {
    std::string_view text = segment.text;
    const ControlTokens mode = segment.trusted ? ControlTokens::Recognise : ControlTokens::AsText;
    while (end != last && *end <= at) ++end;
    while (end != last && *end < at + text.size()) {
      const std::string_view rest = text.substr(*end - at);
      const auto next = segment.trusted && !rest.empty() && rest[0] == '<'
                            ? tokenizer_.encode(rest.substr(0, std::min<size_t>(rest.size(), 64)), mode)
                            : std::vector<int32_t>{};
      if (!next.empty() && tokenizer_.is_added(next[0])) {
        pieces.push_back({text.substr(0, *end - at), mode});
        tokenizer_.encode(pieces, prompt.ids);
        pieces.clear();
        prompt.snapshot_points.push_back(static_cast<int64_t>(prompt.ids.size()));
        text = rest;
        at = *end;
      }
      ++end;
    }
    pieces.push_back({text, mode});
    at += text.size();
  }
  tokenizer_.encode(pieces, prompt.ids);
  return prompt;
}

Chat::Prompt Chat::prepare(const ChatRequest& request) const {
  return encode(request, request.messages.is_null() ? ChatPrompt{} : render(request));
}

void Chat::set_sampling(const ChatRequest& from, SamplingParams& to) const {
  const SamplingParams& d = defaults_.sampling;
  to = from.sampling;
  if (!from.has_temperature) to.temperature = d.temperature;
  if (!from.has_top_p) to.top_p = d.top_p;
  if (!from.has_top_k) to.top_k = d.top_k;
  if (!from.has_min_p) to.min_p = d.min_p;
  to.seed = from.seed ? *from.seed : random_seed();
}

std::shared_ptr<Generation> Chat::start(const ChatRequest& from, std::function<void()> wake) {
  const ChatPrompt rendered = from.messages.is_null() ? ChatPrompt{} : render(from);
  Prompt prompt = encode(from, rendered);
  const int64_t context = engine_.limits().context;
  const auto size = static_cast<int64_t>(prompt.ids.size());
  // Coding clients know these words ("prompt is too long", "maximum context length") and make their history shorter.
  if (size >= context)
    throw ApiError(
        400,
        fmt::format("prompt is too long: {} tokens > {} maximum; the maximum context length is {} tokens, "
                    "prompt and reply together",
                    size, context - 1, context),
        std::string(from.prompt_field), "context_length_exceeded");

  Request request;
  request.max_tokens = context - size;
  const int64_t wanted = from.max_tokens > 0 ? from.max_tokens : defaults_.max_tokens;
  if (wanted > 0) request.max_tokens = std::min(request.max_tokens, wanted);
  set_sampling(from, request.sampling);
  request.snapshot_points = std::move(prompt.snapshot_points);
  if (!from.ignore_eos) request.stop_ids = defaults_.end_ids;
  request.stop_ids.insert(request.stop_ids.end(), from.stop_ids.begin(), from.stop_ids.end());
  request.n = from.n;
  request.priority = from.priority;
  request.max_drafts = from.max_drafts;
  if (prompt.thinking && from.thinking_budget > 0 && thinking_end_id_ >= 0) {
    request.thinking_budget = from.thinking_budget;
    request.thinking_end_id = thinking_end_id_;
    request.thinking_close = thinking_close_;
  }
  request.grammar = grammar_for(from, prompt.thinking);
  if (request.grammar && prompt.thinking) request.grammar_after_id = thinking_end_id_;

  GenerationSetup setup;
  setup.engine = &engine_;
  setup.tokenizer = &tokenizer_;
  setup.metrics = &metrics_;
  setup.replies = from.n;
  setup.raw = from.messages.is_null();
  setup.thinking = prompt.thinking;
  setup.tools = from.tool_use == ToolUse::None ? Json() : from.tools;
  setup.one_call = !from.parallel_tool_calls;
  setup.stop = from.stop;
  setup.stop_ids = request.stop_ids;
  setup.prompt_tokens = size;
  setup.wake = std::move(wake);
  auto generation = std::make_shared<Generation>(std::move(setup));
  request.prompt = std::move(prompt.ids);
  try {
    const RequestId id =
        engine_.submit(std::move(request), [generation](const Event& event) { generation->accept(event); });
    generation->submitted(id);
  } catch (const SubmitError& error) {
    switch (error.kind) {
      case SubmitError::Kind::Full: {
        ApiError full(429, error.what(), {}, "queue_full");
        full.retry_after = 1;
        throw full;
      }
      case SubmitError::Kind::ShuttingDown: {
        ApiError ending(503, error.what(), {}, "shutting_down");
        ending.retry_after = 5;
        throw ending;
      }
      case SubmitError::Kind::Invalid:
        break;
    }
    throw ApiError(400, error.what());
  }
  return generation;
}

GrammarPtr Chat::grammar_for(const ChatRequest& request, bool thinking) {
  const AnswerFormat& format = request.format;
  const bool forced = request.tool_use == ToolUse::Required || request.tool_use == ToolUse::Named;
  if (!forced && format.kind == AnswerFormat::Kind::Text) return nullptr;
  const bool has_think_end = thinking_end_id_ >= 0;
  if (thinking && !has_think_end)
    throw ApiError(400, "a constrained answer after reasoning needs a tokenizer with a </think> token");

  GrammarOptions options;
  options.leading_line_feeds = thinking ? 2 : 0;  // models write them after </think>
  std::string key =
      fmt::format("{} {} ", forced ? 100 + static_cast<int>(request.tool_use) : static_cast<int>(format.kind),
                  options.leading_line_feeds);
  // The format is the answer's; on the way to it the model may still call.
  if (!forced && request.tool_use == ToolUse::Auto && request.tools.is_array()) {
    options.or_calls_of = &request.tools;
    options.parallel_calls = request.parallel_tool_calls;
    key += fmt::format("{} {} ", request.parallel_tool_calls, write_json(request.tools));
  }
  if (forced)
    key += fmt::format("{} {} {}", request.parallel_tool_calls, request.tool_name, write_json(request.tools));
  else
    key += format.kind == AnswerFormat::Kind::JsonSchema ? write_json(format.schema) : format.source;

  GrammarVocabularyPtr vocabulary;
  {
    std::lock_guard lock(grammar_mutex_);
    if (const auto found = grammars_.find(key); found != grammars_.end()) return found->second;
    if (!grammar_vocabulary_)
      grammar_vocabulary_ = std::make_shared<const GrammarVocabulary>(tokenizer_, defaults_.end_ids);
    vocabulary = grammar_vocabulary_;
  }
  const std::string path = forced ? "tools" : format.path;
  GrammarPtr grammar;
  try {
    if (forced) {
      ToolGrammar choice;
      choice.choice = request.tool_use == ToolUse::Named ? ToolChoice::Named : ToolChoice::Required;
      choice.name = request.tool_name;
      choice.parallel = request.parallel_tool_calls;
      grammar = compile_tool_calls(vocabulary, request.tools, choice, options);
    } else {
      switch (format.kind) {
        case AnswerFormat::Kind::JsonObject:
          grammar = compile_any_json(vocabulary, true, options);
          break;
        case AnswerFormat::Kind::JsonSchema:
          grammar = compile_json_schema(vocabulary, format.schema, options);
          break;
        case AnswerFormat::Kind::Regex:
          grammar = compile_regex(vocabulary, format.source, options);
          break;
        case AnswerFormat::Kind::Ebnf:
          grammar = compile_ebnf(vocabulary, format.source, options);
          break;
        case AnswerFormat::Kind::Text:
          break;
      }
    }
  } catch (const Error& error) {
    throw ApiError(400, path + ": " + error.what(), path);
  }
  std::lock_guard lock(grammar_mutex_);
  size_t bytes = key.size() + grammar->bytes();
  for (const auto& [other, held] : grammars_) bytes += other.size() + held->bytes();
  if (grammars_.size() >= 64 || bytes > kGrammarBytes) grammars_.clear();
  grammars_.emplace(std::move(key), grammar);
  return grammar;
}

}  // namespace quern
