// A grammar as expressions, between the languages it is written in (JSON schema, regular expressions, EBNF,
// tool calls) and the automaton that is run. Expressions live in one pool and refer to each other by number;
// they form a directed graph without cycles. Recursion goes through rules.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/char_set.h"

namespace quern {

class GrammarSource {
 public:
  using Id = int32_t;
  static constexpr int kUnbounded = -1;
  // An Error names the grammar as too large beyond this many expressions.
  static constexpr size_t kMaxExprs = 400'000;

  enum class Kind : uint8_t {
    Bytes,       // `bytes`; empty: matches nothing of the text
    Chars,       // one character of `chars`, as UTF-8
    Seq,         // `parts` one after the other
    Alt,         // one of `parts`; none at all: nothing matches
    Repeat,      // parts[0] at least `min`, at most `max` times
    Rule,        // rule number `rule`
    Token,       // the added token `rule`, as one token
    JsonString,  // a JSON string of min…max characters, quotes included
    Members,  // parts[3…] in order, `bytes` telling the required ('1') from those that may be left out ('0'); before
    // each but the first written comes parts[0], after the last parts[1], or parts[2] where none was. A member is a Seq
    // that begins with its name, as Bytes
    Until,    // any bytes up to and including the first `bytes`, which end in a line feed
    AnyText,  // any bytes
  };
  struct Expr {
    Kind kind = Kind::Bytes;
    std::vector<Id> parts{};
    std::string bytes{};
    CharSet chars{};
    int min = 0, max = 0;
    int rule = 0;
  };
  struct Rule {
    std::string name;
    Id body = -1;
    // Laid down where it is used, as long as that is no recursion and stays small: masks need not look beyond
    // its end.
    bool expand = false;
  };

  Id bytes(std::string_view text);
  Id chars(CharSet set);
  Id seq(std::vector<Id> parts);
  Id alt(std::vector<Id> parts);
  Id repeat(Id part, int min, int max);
  Id optional(Id part) { return repeat(part, 0, 1); }
  Id rule(int rule);
  Id token(int32_t id);
  Id json_string(int min = 0, int max = kUnbounded);
  Id members(Id comma, Id after, Id none, const std::vector<Id>& members, std::string required);
  Id until(std::string_view end);
  Id any_text();
  int add_rule(std::string name, Id body = -1, bool expand = false);

  std::vector<Expr> exprs;
  std::vector<Rule> rules;
  Id root = -1;

 private:
  Id add(Expr e);
};

}  // namespace quern
