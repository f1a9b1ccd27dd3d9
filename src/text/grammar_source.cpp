#include "text/grammar_source.h"

#include <fmt/core.h>

#include "base/check.h"

namespace quern {

using Id = GrammarSource::Id;

Id GrammarSource::add(Expr e) {
  if (exprs.size() >= kMaxExprs) throw Error(fmt::format("grammar: more than {} expressions", kMaxExprs));
  exprs.push_back(std::move(e));
  return static_cast<Id>(exprs.size()) - 1;
}

Id GrammarSource::bytes(std::string_view text) {
  Expr e{Kind::Bytes};
  e.bytes = text;
  return add(std::move(e));
}
Id GrammarSource::chars(CharSet set) {
  Expr e{Kind::Chars};
  e.chars = std::move(set);
  return add(std::move(e));
}
Id GrammarSource::seq(std::vector<Id> parts) {
  if (parts.size() == 1) return parts[0];
  Expr e{Kind::Seq};
  e.parts = std::move(parts);
  return add(std::move(e));
}
Id GrammarSource::alt(std::vector<Id> parts) {
  if (parts.size() == 1) return parts[0];
  Expr e{Kind::Alt};
  e.parts = std::move(parts);
  return add(std::move(e));
}
Id GrammarSource::repeat(Id part, int min, int max) {
  Expr e{Kind::Repeat};
  e.parts = {part};
  e.min = min;
  e.max = max;
  return add(std::move(e));
}
Id GrammarSource::rule(int rule) {
  Expr e{Kind::Rule};
  e.rule = rule;
  return add(std::move(e));
}
Id GrammarSource::token(int32_t id) {
  Expr e{Kind::Token};
  e.rule = id;
  return add(std::move(e));
}
Id GrammarSource::json_string(int min, int max) {
  Expr e{Kind::JsonString};
  e.min = min;
  e.max = max;
  return add(std::move(e));
}
Id GrammarSource::members(Id comma, Id after, Id none, const std::vector<Id>& members, std::string required) {
  Expr e{Kind::Members};
  e.parts = {comma, after, none};
  e.parts.insert(e.parts.end(), members.begin(), members.end());
  e.bytes = std::move(required);
  return add(std::move(e));
}
Id GrammarSource::until(std::string_view end) {
  Expr e{Kind::Until};
  e.bytes = end;
  return add(std::move(e));
}
Id GrammarSource::any_text() { return add(Expr{Kind::AnyText}); }

int GrammarSource::add_rule(std::string name, Id body, bool expand) {
  rules.push_back({std::move(name), body, expand});
  return static_cast<int>(rules.size()) - 1;
}

}  // namespace quern
