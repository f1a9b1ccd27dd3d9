// EBNF → grammar expressions, in the notation of llama.cpp's GBNF files and its relatives:
//
//   root  ::= greeting (", " name)* "!"?      # a comment
//   name  ::= [A-Z] [a-z]{1,20} | "\u00c9mile" | 'x'
//
// A rule ends where the next one begins. In strings and classes: \n \r \t \\ \" \' \] \[ \xHH \uHHHH
// \UHHHHHHHH.
// `.` is any character. `root` is where the text starts.
#pragma once

#include <string_view>

#include "text/grammar_source.h"

namespace quern {

// Adds the grammar's rules and gives the expression of `root`. Throws Error("EBNF: … at line N").
GrammarSource::Id parse_ebnf(GrammarSource& source, std::string_view grammar);

}  // namespace quern
