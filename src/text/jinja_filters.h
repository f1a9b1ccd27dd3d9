// Filters and tests by name.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace quern {

using JinjaFilter = JinjaValue (*)(JinjaInterpreter&, const JinjaValue&, JinjaArguments&);
using JinjaTest = bool (*)(JinjaInterpreter&, const JinjaValue&, JinjaArguments&);

JinjaFilter find_filter(std::string_view name);  // null where there is none
JinjaTest find_test(std::string_view name);

// Python's int(text, base) and float(text): false where Python raises ValueError.
bool parse_python_int(std::string_view text, int base, BigInt& value);
bool parse_python_float(std::string_view text, double& value);

}  // namespace quern
