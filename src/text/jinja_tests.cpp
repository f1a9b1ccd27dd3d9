#include <algorithm>
#include <string_view>

#include "text/jinja_filters.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_methods.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;
using In = JinjaInterpreter;
using Value = JinjaValue;
using Arguments = JinjaArguments;

template <Kind kind>
bool t_kind(In&, const Value& v, Arguments&) {
  return v.is(kind);
}
bool t_defined(In&, const Value& v, Arguments&) { return !v.is_undefined(); }
bool t_string(In&, const Value& v, Arguments&) { return v.is_string(); }
bool t_number(In&, const Value& v, Arguments&) { return v.is_number(); }
bool t_integer(In&, const Value& v, Arguments&) { return v.is(Kind::Int) || v.is(Kind::BigInt); }
bool t_true(In&, const Value& v, Arguments&) { return v.is(Kind::Bool) && v.as_bool(); }
bool t_false(In&, const Value& v, Arguments&) { return v.is(Kind::Bool) && !v.as_bool(); }
bool t_callable(In&, const Value& v, Arguments&) {
  return v.is(Kind::Callable) || v.is(Kind::Loop) || v.is_undefined();
}
bool t_iterable(In&, const Value& v, Arguments&) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::Dict) || v.is(Kind::Generator) ||
         v.is(Kind::Loop);
}
bool t_sequence(In&, const Value& v, Arguments&) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::Dict);
}
bool t_escaped(In&, const Value&, Arguments&) { return false; }

template <bool odd>
bool t_parity(In& in, const Value& v, Arguments&) {
  return equal(in.binary("%", v, Value(2)), Value(odd ? 1 : 0));
}
bool t_divisibleby(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("divisibleby", arguments, {"num"});
  return equal(in.binary("%", v, bound.need(0)), Value(0));
}

enum class Order { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual };
template <Order order>
bool t_order(In& in, const Value& a, Arguments& arguments) {
  JinjaBound bound("comparison", arguments, {"other"});
  const Value& b = bound.need(0);
  in.charge((a.weight() + b.weight()) / 4);
  switch (order) {
    case Order::Equal:
      return equal(a, b);
    case Order::NotEqual:
      return !equal(a, b);
    case Order::Less:
      return less(a, b);
    case Order::LessEqual:
      return less(a, b) || equal(a, b);
    case Order::Greater:
      return less(b, a);
    default:
      return less(b, a) || equal(a, b);
  }
}

bool t_in(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("in", arguments, {"seq"});
  in.charge(bound.need(0).weight() / 4);
  return contains(*bound.get(0), v);
}

bool t_sameas(In&, const Value& v, Arguments& arguments) {
  JinjaBound bound("sameas", arguments, {"other"});
  const Value& other = bound.need(0);
  if (v.kind() != other.kind()) return false;
  return v.object() || other.object() ? v.object() == other.object() : equal(v, other);
}

template <const char* method>
bool t_case(In& in, const Value& v, Arguments&) {
  Arguments none;
  const Value text = v.is_string() ? v : in.make_text(in.text_of(v));
  return in.call(find_method(text, method), none).truth();
}
constexpr char kIsLower[] = "islower", kIsUpper[] = "isupper";

bool t_filter(In& in, const Value& v, Arguments&) { return find_filter(in.text_of(v).view()) != nullptr; }
bool t_test(In& in, const Value& v, Arguments&) { return find_test(in.text_of(v).view()) != nullptr; }

struct TestEntry {
  std::string_view name;
  JinjaTest test;
};
constexpr TestEntry kTests[] = {
    {"!=", t_order<Order::NotEqual>},
    {"<", t_order<Order::Less>},
    {"<=", t_order<Order::LessEqual>},
    {"==", t_order<Order::Equal>},
    {">", t_order<Order::Greater>},
    {">=", t_order<Order::GreaterEqual>},
    {"boolean", t_kind<Kind::Bool>},
    {"callable", t_callable},
    {"defined", t_defined},
    {"divisibleby", t_divisibleby},
    {"eq", t_order<Order::Equal>},
    {"equalto", t_order<Order::Equal>},
    {"escaped", t_escaped},
    {"even", t_parity<false>},
    {"false", t_false},
    {"filter", t_filter},
    {"float", t_kind<Kind::Float>},
    {"ge", t_order<Order::GreaterEqual>},
    {"greaterthan", t_order<Order::Greater>},
    {"gt", t_order<Order::Greater>},
    {"in", t_in},
    {"integer", t_integer},
    {"iterable", t_iterable},
    {"le", t_order<Order::LessEqual>},
    {"lessthan", t_order<Order::Less>},
    {"lower", t_case<kIsLower>},
    {"lt", t_order<Order::Less>},
    {"mapping", t_kind<Kind::Dict>},
    {"ne", t_order<Order::NotEqual>},
    {"none", t_kind<Kind::None>},
    {"number", t_number},
    {"odd", t_parity<true>},
    {"sameas", t_sameas},
    {"sequence", t_sequence},
    {"string", t_string},
    {"test", t_test},
    {"true", t_true},
    {"undefined", t_kind<Kind::Undefined>},
    {"upper", t_case<kIsUpper>},
};

}  // namespace

JinjaTest find_test(std::string_view name) {
  for (const TestEntry& entry : kTests) {
    if (entry.name == name) return entry.test;
  }
  return nullptr;
}

}  // namespace quern
