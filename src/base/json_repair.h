// What must be mended in a JSON text before a strict parser sees it. JavaScript clients cut strings in the middle of
// a surrogate pair and send "\ud83d" alone; a server that refuses the body breaks the conversation for good, since
// the client sends the same history again with each turn.
#pragma once

#include <cstddef>
#include <string>

#include "base/json.h"

namespace quern {

// Replaces each \uD800…\uDFFF that is no half of a pair by \ufffd, in place, and returns how many there were.
size_t repair_surrogates(std::string& json);
// For JSON within a string of such a text (the arguments of a call), where the repair of the outer one does not reach.
Json parse_repaired_json(std::string text, const JsonLimits& limits = {});

}  // namespace quern
