// quern chat: a conversation in the terminal. Ctrl-C stops the answer and not the program; Ctrl-D ends it.
#include <editline/readline.h>
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <clocale>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "base/check.h"
#include "commands.h"
#include "interrupt_guard.h"
#include "local_engine.h"

namespace quern {
namespace {

constexpr const char* kCommandList = "/new starts over, /exit or Ctrl-D ends, Ctrl-C stops an answer";

// A line of the user's, with editing and history on a terminal; nothing at the end of input.
std::optional<std::string> read_line(bool terminal) {
  if (terminal) {
    char* line = ::readline("> ");
    if (!line) return std::nullopt;
    if (*line) ::add_history(line);
    std::string text = line;
    std::free(line);
    return text;
  }
  std::string text;
  if (!std::getline(std::cin, text)) return std::nullopt;
  return text;
}

Json message(std::string_view role, std::string_view content) {
  Json m;
  m.set("role", role);
  m.set("content", content);
  return m;
}

// "/help" and "/New"; not "/etc/hosts" nor "/ is the root": those are said to the model.
bool looks_like_command(std::string_view line) {
  if (!line.starts_with('/')) return false;
  const std::string_view word = line.substr(1, line.find_first_of(" \t\r") - 1);
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  return !word.empty() && std::all_of(word.begin(), word.end(), is_letter);
}

// A reply as the message the template takes back: reasoning apart from the answer.
Json assistant_message(std::string text, bool thinking) {
  constexpr std::string_view kEnd = "</think>";
  Json m = message("assistant", "");
  const size_t end = text.find(kEnd);
  if (thinking) m.set("reasoning_content", text.substr(0, end));
  if (!thinking || end != std::string::npos) {
    std::string content = thinking ? text.substr(end + kEnd.size()) : std::move(text);
    content.erase(0, content.find_first_not_of('\n') == std::string::npos ? content.size()
                                                                          : content.find_first_not_of('\n'));
    m.set("content", content);
  }
  return m;
}

}  // namespace

int chat_main(int argc, char** argv) {
  CLI::App app("A conversation in the terminal.");
  ModelFlags model;
  model.add_to(app);
  ReplyFlags flags;
  flags.add_to(app);
  if (const auto code = parse_options(app, argc, argv)) return *code;

  LocalEngine engine(model, flags);
  const bool terminal = ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  if (terminal) {
    // In the C locale the line editor drops whatever is not ASCII. Text is UTF-8 here, whatever the environment says.
    if (!std::setlocale(LC_CTYPE, "C.UTF-8")) std::setlocale(LC_CTYPE, "");
    fmt::print("{}.\n", kCommandList);
    ::using_history();
  }
  Json messages = Json(Json::Array());
  while (const auto line = read_line(terminal)) {
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (*line == "/exit" || *line == "/quit") break;
    if (*line == "/new") {
      messages = Json(Json::Array());
      continue;
    }
    if (looks_like_command(*line)) {
      std::fprintf(stderr, "quern chat: no such command; %s\n", kCommandList);
      continue;
    }
    messages.push_back(message("user", *line));
    try {
      const InterruptGuard guard({SIGINT});
      const ChatPrompt prompt = engine.render(messages);
      ReplyPrinter printer(engine.tokenizer(), prompt.thinking);
      LocalReply reply = engine.reply(engine.encode(prompt), guard.asked(),
                                      [&](std::span<const int32_t> ids) { printer.print(ids); });
      printer.finish();
      while (!reply.ids.empty() && engine.is_end(reply.ids.back())) reply.ids.pop_back();
      messages.push_back(assistant_message(engine.tokenizer().decode(reply.ids), prompt.thinking));
      if (reply.reason == FinishReason::Cancelled) fmt::print("[stopped]\n");
      if (reply.reason == FinishReason::Length) fmt::print("[the reply reached its limit]\n");
    } catch (const Error& e) {
      std::fprintf(stderr, "quern chat: %s\n", e.what());
      messages.as_array().pop_back();
    }
  }
  if (terminal) fmt::print("\n");
  return 0;
}

}  // namespace quern
