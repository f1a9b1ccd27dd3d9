// quern run: one answer.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>

#include "base/check.h"
#include "base/mapped_file.h"
#include "commands.h"
#include "local_engine.h"

namespace quern {
namespace {

std::string_view reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop:
      return "stop";
    case FinishReason::Length:
      return "length";
    case FinishReason::Cancelled:
      return "cancelled";
    case FinishReason::Error:
      return "error";
  }
  return "error";
}

Json ids_json(const std::vector<int32_t>& ids) {
  Json::Array array;
  for (const int32_t id : ids) array.emplace_back(id);
  return array;
}

double rate(int64_t n, double seconds) { return seconds > 0 ? static_cast<double>(n) / seconds : 0.0; }

}  // namespace

int run_main(int argc, char** argv) {
  CLI::App app("Prints the model's answer to one prompt.");
  ModelFlags model;
  model.add_to(app);
  ReplyFlags flags;
  flags.add_to(app);
  std::string prompt, file;
  bool raw = false, json = false;
  auto* text = app.add_option("-p,--prompt", prompt, "the prompt; where absent, standard input");
  app.add_option("-f,--file", file, "read the prompt from this file")
      ->excludes(text)
      ->check(CLI::ExistingFile);
  app.add_flag("--raw", raw, "continue the text as it is, without the chat template");
  app.add_flag("--json", json, "print one JSON object with ids, text and timings");
  if (const auto code = parse_options(app, argc, argv)) return *code;

  if (!file.empty()) {
    prompt = read_text(file);
  } else if (text->count() == 0) {
    if (::isatty(STDIN_FILENO) == 1) {
      std::fprintf(stderr, "quern run: no prompt: give -p TEXT, -f FILE, or standard input\n");
      return 2;
    }
    prompt = read_standard_input();
    while (!raw && !prompt.empty() && (prompt.back() == '\n' || prompt.back() == '\r')) prompt.pop_back();
  }
  if (prompt.empty()) throw Error("the prompt is empty");

  LocalEngine engine(model, flags);
  std::vector<int32_t> prompt_ids;
  bool thinking = false;
  if (raw) {
    prompt_ids = engine.tokenizer().encode(prompt, ControlTokens::Recognise);
  } else {
    Json message;
    message.set("role", "user");
    message.set("content", prompt);
    const ChatPrompt rendered = engine.render(Json::Array{message});
    prompt_ids = engine.encode(rendered);
    thinking = rendered.thinking;
  }

  const std::atomic<bool> never = false;
  ReplyPrinter printer(engine.tokenizer(), thinking && !json);
  const LocalReply reply = engine.reply(prompt_ids, never, [&](std::span<const int32_t> ids) {
    if (!json) printer.print(ids);
  });
  if (!json) {
    printer.finish();
    if (::isatty(STDERR_FILENO) == 1)
      fmt::print(stderr, "[{} prompt tokens, {:.1f}/s; {} tokens, {:.1f}/s]\n", prompt_ids.size(),
                 rate(reply.usage.prompt_tokens, reply.usage.prefill_seconds), reply.ids.size(),
                 rate(reply.usage.completion_tokens, reply.usage.decode_seconds));
    return 0;
  }
  Json out, timings;
  out.set("prompt_ids", ids_json(prompt_ids));
  out.set("ids", ids_json(reply.ids));
  out.set("text", engine.tokenizer().decode(reply.ids, true));
  out.set("finish_reason", reason_name(reply.reason));
  timings.set("prefill_seconds", reply.usage.prefill_seconds);
  timings.set("decode_seconds", reply.usage.decode_seconds);
  timings.set("prefill_tokens_per_second", rate(reply.usage.prompt_tokens, reply.usage.prefill_seconds));
  timings.set("decode_tokens_per_second", rate(reply.usage.completion_tokens, reply.usage.decode_seconds));
  timings.set("drafted_tokens", reply.usage.drafted_tokens);
  timings.set("accepted_tokens", reply.usage.accepted_tokens);
  out.set("timings", timings);
  fmt::print("{}\n", write_json(out));
  return 0;
}

}  // namespace quern
