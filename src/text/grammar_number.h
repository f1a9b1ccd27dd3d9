// Decimal numbers within bounds, as grammar expressions over their digits.
#pragma once

#include <optional>

#include "base/json.h"
#include "text/grammar_source.h"

namespace quern {

struct NumberBounds {
  std::optional<Json> min, max;  // numbers
  bool min_exclusive = false, max_exclusive = false;
};

// JSON numbers, or integers, within the bounds; nothing matches where there are none. Throws Error("…") where
// a bound is too large to be told from its neighbours. What lies strictly inside a bound does so as a double, too.
GrammarSource::Id json_number(GrammarSource& source, const NumberBounds& bounds);
GrammarSource::Id json_integer(GrammarSource& source, const NumberBounds& bounds);

}  // namespace quern
