// Qwen's tool calls → grammar expressions.
#pragma once

#include "base/json.h"
#include "text/grammar.h"

namespace quern {

GrammarSource::Id tool_calls(GrammarSource& source, const GrammarVocabulary& vocabulary, const Json& tools,
                             const ToolGrammar& choice);

}  // namespace quern
