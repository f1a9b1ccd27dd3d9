// Regular expressions → grammar expressions. The ECMA-262 syntax that JSON schemas use, over Unicode
// characters:
//
//   literals  .  [a-z] [^…]  \d \w \s \D \W \S  \t \n \r \f \v \0 \cX \xHH \uHHHH \u{…}  \p{L} \p{M} \p{N}
//   \P{…} (…) (?:…) (?<name>…)  |  * + ? {n} {n,} {n,m}, lazy or not  ^ $ at the ends of alternatives
//
// What cannot be a regular language here is refused by name: look-around, back-references, \b, flags.
#pragma once

#include <functional>
#include <string_view>

#include "text/grammar_source.h"

namespace quern {

enum class RegexAnchors : uint8_t {
  Whole,   // the text is the match; ^ and $ may be written
  Search,  // the text contains a match, unless ^ and $ say more
};

// How one character of a set is written: as itself, or as in a JSON string.
using CharWriter = std::function<GrammarSource::Id(GrammarSource&, const CharSet&)>;
GrammarSource::Id write_raw_char(GrammarSource& source, const CharSet& set);
GrammarSource::Id write_json_char(GrammarSource& source, const CharSet& set);

// Throws Error("regular expression: … at character N").
GrammarSource::Id parse_regex(GrammarSource& source, std::string_view pattern, RegexAnchors anchors,
                              const CharWriter& writer);

}  // namespace quern
