// quern bench --drafts: how many tokens a step gives with drafts from the model's own draft block and from look-up,
// on the three kinds of text that tell them apart: facts, tool calls, and text that repeats the prompt. Greedy; the
// ids must be the same in every row of the table.
#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "bench.h"
#include "checkpoint/generation_config.h"
#include "engine/engine_core.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quern {
namespace {

const char* const kTools = R"([
  {"type": "function", "function": {"name": "get_weather", "description": "Current weather for a city",
   "parameters": {"type": "object", "properties": {"city": {"type": "string"},
   "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}},
  {"type": "function", "function": {"name": "search", "description": "Search the web",
   "parameters": {"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
   "required": ["query"]}}}])";

struct Text {
  const char* kind;
  std::vector<std::vector<int32_t>> prompts;
};

std::vector<Text> make_texts(const Tokenizer& tokenizer, const ChatTemplate& chat_template) {
  const auto ask = [&](const std::string& question, const Json& tools) {
    Json message{Json::Object{}};
    message.set("role", "user");
    message.set("content", question);
    Json variables{Json::Object{}};
    variables.set("add_generation_prompt", true);
    return encode_prompt(tokenizer,
                         render_chat(chat_template, Json(Json::Array{message}), tools, variables).prompt);
  };
  Text facts{"facts", {}}, tools{"tool calls", {}}, repeats{"repeated text", {}};
  for (const char* country : {"France", "Norway", "Japan", "Italy", "Spain", "Germany"})
    facts.prompts.push_back(ask(fmt::format("What is the capital of {}?", country), Json()));
  for (const char* city : {"Oslo", "Paris", "Rome", "Madrid", "Tokyo", "Berlin"})
    tools.prompts.push_back(
        ask(fmt::format("What is the weather in {} in celsius?", city), parse_json(kTools)));
  // A passage twice and the start of a third time: the model goes on with sentences of the passage, word for word.
  const std::string sentences[] = {"The garden needs water every second day in summer.",
                                   "A train left the station a few minutes late.",
                                   "The old clock in the hall is five minutes slow.",
                                   "The bakery sells fresh bread every morning.",
                                   "Most of the books on the shelf were about history.",
                                   "The recipe asks for two cups of flour and a little salt.",
                                   "Several students asked about the second chapter."};
  constexpr int kSentences = std::size(sentences), kPassage = 5;
  for (int i = 1; i <= kPassage; ++i) {
    std::string passage;
    for (int j = 0; j < kPassage; ++j) passage += sentences[(i + j) % kSentences] + " ";
    repeats.prompts.push_back(
        tokenizer.encode(passage + passage + sentences[i % kSentences], ControlTokens::AsText));
  }
  return {facts, tools, repeats};
}

struct Mode {
  std::string name;
  bool block = false, lookup = false, fixed = true;
  int depth = 0;
};

struct Measured {
  int64_t tokens = 0, steps = 0, drafted = 0, accepted = 0;
  double seconds = 0;
  std::vector<int64_t> drafted_at, accepted_at;
  std::vector<std::vector<int32_t>> replies;
};

Measured measure(Model& model, const EngineOptions& base, const Mode& mode, const Text& text, int64_t n,
                 const std::vector<int32_t>& stop_ids) {
  EngineOptions options = base;
  options.prefix_cache = false;
  options.draft_block = mode.block;
  options.draft_lookup = mode.lookup;
  options.fixed_drafts = mode.fixed;
  options.max_drafts = mode.depth;
  EngineCore core(model, options);
  Measured m;
  const bool endless = std::string(text.kind) == "repeated text";
  for (const auto& prompt : text.prompts) {
    auto s = std::make_shared<Submission>();
    s->id = 1;
    s->submitted = Clock::now();
    s->request.prompt = prompt;
    s->request.max_tokens = n;
    s->request.sampling.temperature = 0;
    if (!endless) s->request.stop_ids = stop_ids;
    std::vector<int32_t> ids;
    Usage usage;
    s->sink = [&](const Event& e) {
      ids.insert(ids.end(), e.ids.begin(), e.ids.end());
      usage = e.usage;
      if (e.finished && e.reason == FinishReason::Error) throw Error("bench: " + e.error);
    };
    core.submit(s);
    int64_t steps = 0;
    while (!core.idle())
      if (core.step()) ++steps;
    // The first token belongs to the prefill.
    m.tokens += static_cast<int64_t>(ids.size()) - 1;
    const int64_t chunks =
        (static_cast<int64_t>(prompt.size()) + model.options().batch.rows / kPageTokens * kPageTokens - 1) /
        (model.options().batch.rows / kPageTokens * kPageTokens);
    m.steps += steps - chunks;
    m.seconds += usage.decode_seconds;
    m.replies.push_back(std::move(ids));
  }
  const EngineStats stats = core.stats();
  m.drafted_at = stats.drafted;
  m.accepted_at = stats.accepted;
  for (const int64_t d : m.drafted_at) m.drafted += d;
  for (const int64_t a : m.accepted_at) m.accepted += a;
  return m;
}

}  // namespace

int bench_drafts(const BenchOptions& bench) {
  EngineFlags engine = bench.engine;
  engine.slots = 1;
  if (engine.context == 0) engine.context = 4096;
  const OpenModel open = open_model_for(bench.model, engine);
  const std::string& model = bench.model.model;
  const Tokenizer tokenizer = Tokenizer::from_model(model);
  const auto texts = make_texts(tokenizer, ChatTemplate::from_model(model));
  const GenerationConfig defaults = read_generation_config(*open.checkpoint);
  const int64_t n = bench.tokens > 0 ? bench.tokens : 128;

  std::vector<Mode> modes = {{.name = "none"}};
  for (const int depth : {1, 2, 3, 4, 8}) {
    if (depth > engine.options.max_drafts) continue;
    if (open.model->has_drafts())
      modes.push_back({.name = fmt::format("MTP {}", depth), .block = true, .depth = depth});
    modes.push_back({.name = fmt::format("look-up {}", depth), .lookup = true, .depth = depth});
  }
  if (engine.options.max_drafts > 0)
    modes.push_back({.name = "adaptive",
                     .block = open.model->has_drafts(),
                     .lookup = true,
                     .fixed = false,
                     .depth = engine.options.max_drafts});

  Json::Array rows;
  bool same = true;
  for (const Text& text : texts) {
    if (!bench.json)
      fmt::print("{:<14} {:<10} {:>12} {:>10} {:>10}  accepted by position\n", text.kind, "drafts",
                 "tokens/step", "tokens/s", "accepted");
    std::vector<std::vector<int32_t>> plain;
    for (const Mode& mode : modes) {
      const Measured m = measure(*open.model, engine.options, mode, text, n, defaults.eos_ids);
      if (plain.empty()) plain = m.replies;
      const bool agrees = m.replies == plain;
      same = same && agrees;
      const double per_step =
          static_cast<double>(m.tokens) / static_cast<double>(std::max<int64_t>(m.steps, 1));
      const double rate = static_cast<double>(m.tokens) / m.seconds;
      std::string by_position;
      Json::Array positions;
      for (size_t i = 0; i < m.drafted_at.size() && m.drafted_at[i] > 0; ++i) {
        const double share = static_cast<double>(m.accepted_at[i]) / static_cast<double>(m.drafted_at[i]);
        by_position += fmt::format(" {:.2f}", share);
        positions.emplace_back(share);
      }
      if (bench.json) {
        Json row{Json::Object{}};
        row.set("text", text.kind);
        row.set("drafts", mode.name);
        row.set("tokens_per_step", per_step);
        row.set("tokens_per_second", rate);
        row.set("drafted", m.drafted);
        row.set("accepted", m.accepted);
        row.set("accepted_by_position", std::move(positions));
        row.set("same_ids", agrees);
        rows.push_back(std::move(row));
      } else {
        const double share =
            m.drafted > 0 ? 100.0 * static_cast<double>(m.accepted) / static_cast<double>(m.drafted) : 0;
        fmt::print("{:<14} {:<10} {:>12.2f} {:>10.1f} {:>9.0f}% {}{}\n", "", mode.name, per_step, rate, share,
                   by_position, agrees ? "" : "  OTHER IDS");
      }
    }
  }
  if (bench.json) fmt::print("{}\n", write_json(Json(std::move(rows))));
  if (!same) throw Error("bench --drafts: some drafts changed the ids");
  return 0;
}

}  // namespace quern
