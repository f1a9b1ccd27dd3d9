// Patterns for names: * is any text, everything else itself.
#pragma once

#include <string_view>

namespace quern {

// Whether the pattern is the whole name.
bool matches(std::string_view pattern, std::string_view name);

}  // namespace quern
