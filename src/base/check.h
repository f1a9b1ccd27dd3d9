// The three kinds of wrong (CONTRIBUTING.md): a bug in Quern is a failed CHECK and ends the program; a fault
// of the outside world (a file, a request, a flag) is an Error, caught in main or per request; a device fault
// has its own check in tensor/.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace quern {

// The outside world is wrong. `what()` is one line that names the thing, what was expected and what was
// found.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message) : std::runtime_error(message) {}
};

// Prints `file:line: CHECK(condition): message` to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace quern

// A condition that holds unless Quern has a bug. Always on. `message` is evaluated only on failure.
#define QUERN_CHECK(condition, message)                                 \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::quern::check_failed(__FILE__, __LINE__, #condition, (message)); \
  } while (false)
