// The template's source as tokens, with Jinja 3.1's white-space rules (trim_blocks and lstrip_blocks on, one trailing
// newline dropped): after {% … %} one newline goes; before {% … %} and {# … #} the blanks of the line go unless the tag
// says {%+; a minus sign takes all white space on its side.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace quern {

struct JinjaToken {
  enum class Kind : uint8_t {
    Data,
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name,
    String,
    Integer,
    Float,
    Operator,
    End
  };
  Kind kind = Kind::End;
  int line = 1;
  std::string text;  // Data and String: the value; Name, Operator: the spelling
  JinjaValue number;

  bool is(Kind k) const { return kind == k; }
  bool is_name(std::string_view s) const { return kind == Kind::Name && text == s; }
  bool is_operator(std::string_view s) const { return kind == Kind::Operator && text == s; }
};

// Throws Error("chat template line N: …").
std::vector<JinjaToken> tokenize_template(std::string_view source);

[[noreturn]] void template_error(int line, const std::string& what);

}  // namespace quern
