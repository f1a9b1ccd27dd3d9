// The methods of strings, lists, tuples, dicts and numbers, as Python's sandbox allows them: what would change a value
// is refused. And the template's global functions.
#pragma once

#include <string_view>

#include "text/jinja_value.h"

namespace quern {

// The bound method, or a value of kind Undefined where the type has none by this name. A method that the sandbox blocks
// is Undefined with a message that says so.
JinjaValue find_method(const JinjaValue& object, std::string_view name);

// range, dict, namespace, raise_exception, strftime_now, cycler, joiner; Undefined for another name.
JinjaValue find_global(std::string_view name);

}  // namespace quern
