#include "effort_flag.h"

#include <CLI/CLI.hpp>

#include "base/check.h"
#include "text/chat_messages.h"

namespace quern {

void check_effort(CLI::App& app, ReplyFlags& flags) {
  const auto read = [&flags](std::string& name) -> std::string {
    try {
      name = canonical_effort(name);
    } catch (const Error&) {
      return "expected none, minimal, low, medium, high, xhigh or max, found " + name;
    }
    if (name != "none") return "";
    flags.no_thinking = true;
    name = "";
    return "";
  };
  app.get_option("--effort")->transform(CLI::Validator(read, ""));
}

}  // namespace quern
