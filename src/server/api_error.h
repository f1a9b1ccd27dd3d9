// A refusal or failure as clients see it; each protocol writes it in its own shape (openai.h, anthropic.h).
#pragma once

#include <string>
#include <utility>

#include "base/check.h"

namespace quern {

class ApiError : public Error {
 public:
  ApiError(int status, const std::string& message, std::string param = {}, std::string code = {})
      : Error(message), status(status), param(std::move(param)), code(std::move(code)) {}
  int status;           // HTTP
  std::string param;    // the field at fault, as a path: messages[2].content
  std::string code;     // machine-readable, where there is one: context_length_exceeded, …
  int retry_after = 0;  // seconds, for 429 and 503
};

}  // namespace quern
