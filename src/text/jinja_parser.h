// Jinja 3.1's grammar with loop controls and the generation tag. What reaches outside the template (include, import,
// from, extends, block) is refused by name.
#pragma once

#include <string_view>

#include "text/jinja_ast.h"

namespace quern {

// Throws Error("chat template line N: …").
JinjaBody parse_template(std::string_view source);

}  // namespace quern
