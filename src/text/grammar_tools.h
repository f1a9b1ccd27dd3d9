// Qwen's tool calls → grammar expressions.
#pragma once

#include "base/json.h"
#include "text/grammar.h"

namespace quern {

// One call, or several where choice.parallel; nothing around them.
GrammarSource::Id call_list(GrammarSource& source, const GrammarVocabulary& vocabulary, const Json& tools,
                            const ToolGrammar& choice);
// The same, and for ToolChoice::Auto any text in front of them.
GrammarSource::Id tool_calls(GrammarSource& source, const GrammarVocabulary& vocabulary, const Json& tools,
                             const ToolGrammar& choice);

}  // namespace quern
