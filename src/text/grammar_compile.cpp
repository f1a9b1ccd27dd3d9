// The entry points of grammar.h: each language's expressions, put together and built.
#include <fmt/core.h>

#include "base/check.h"
#include "text/grammar.h"
#include "text/grammar_ebnf.h"
#include "text/grammar_json.h"
#include "text/grammar_regex.h"
#include "text/grammar_tools.h"

namespace quern {
namespace {

GrammarPtr finish(GrammarVocabularyPtr vocabulary, GrammarSource& source, GrammarSource::Id text,
                  const GrammarOptions& options) {
  source.root = text;
  if (options.or_calls_of) {
    const ToolGrammar choice{ToolChoice::Auto, "", options.parallel_calls};
    source.root = source.alt({text, call_list(source, *vocabulary, *options.or_calls_of, choice)});
  }
  if (options.leading_line_feeds > 0)
    source.root = source.seq({source.repeat(source.bytes("\n"), 0, options.leading_line_feeds), source.root});
  return std::make_shared<const Grammar>(std::move(vocabulary), source);
}

}  // namespace

GrammarPtr compile_json_schema(GrammarVocabularyPtr vocabulary, const Json& schema,
                               const GrammarOptions& options) {
  GrammarSource source;
  const auto text = json_schema(source, schema, "#");
  return finish(std::move(vocabulary), source, text, options);
}

GrammarPtr compile_any_json(GrammarVocabularyPtr vocabulary, bool object_only,
                            const GrammarOptions& options) {
  GrammarSource source;
  const auto text = object_only ? json_any_object(source) : json_any_value(source);
  return finish(std::move(vocabulary), source, text, options);
}

GrammarPtr compile_regex(GrammarVocabularyPtr vocabulary, std::string_view pattern,
                         const GrammarOptions& options) {
  GrammarSource source;
  const auto text = parse_regex(source, pattern, RegexAnchors::Whole, write_raw_char);
  return finish(std::move(vocabulary), source, text, options);
}

GrammarPtr compile_ebnf(GrammarVocabularyPtr vocabulary, std::string_view grammar,
                        const GrammarOptions& options) {
  GrammarSource source;
  const auto text = parse_ebnf(source, grammar);
  return finish(std::move(vocabulary), source, text, options);
}

GrammarPtr compile_tool_calls(GrammarVocabularyPtr vocabulary, const Json& tools, const ToolGrammar& choice,
                              const GrammarOptions& options) {
  GrammarSource source;
  const auto text = tool_calls(source, *vocabulary, tools, choice);
  return finish(std::move(vocabulary), source, text, options);
}

}  // namespace quern
