#include "text/jinja_filters.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/utf8.h"
#include "text/jinja_format.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_methods.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;
using In = JinjaInterpreter;
using Value = JinjaValue;
using Arguments = JinjaArguments;

Value trusted_text(std::string_view text) { return JinjaText(std::string(text), true); }

// ---- what several filters share

// Jinja's soft_str: the text as it is, or what str() makes of a value.
Value as_string(In& in, const Value& v) { return v.is_string() ? v : in.make_text(in.text_of(v)); }

Value method_of_string(In& in, const Value& v, std::string_view name, Arguments& arguments) {
  return in.call(find_method(as_string(in, v), name), arguments);
}

Value ignore_case(const Value& v) {
  return v.is_string() ? Value(change_case(v.as_text(), LetterCase::Lower)) : v;
}

// "a.b.0" as the keys of successive lookups.
std::vector<Value> attribute_path(const Value& attribute) {
  if (!attribute.is_string()) return {attribute};
  std::vector<Value> path;
  const std::string dot = ".";
  for (const JinjaText& part : split(attribute.as_text(), &dot, -1)) {
    const std::string_view s = part.view();
    const bool digits = !s.empty() && s.size() < 18 && s.find_first_not_of("0123456789") == s.npos;
    path.push_back(digits ? Value(static_cast<int64_t>(std::stoll(std::string(s)))) : Value(part));
  }
  return path;
}

class AttributeGetter {
 public:
  AttributeGetter(In& in, const Value* attribute, const Value* otherwise = nullptr)
      : in_(in), otherwise_(otherwise) {
    if (attribute != nullptr && !attribute->is_none()) path_ = attribute_path(*attribute);
  }
  Value operator()(Value v) const {
    in_.charge();
    for (const Value& key : path_) {
      v = in_.item(v, key);
      if (v.is_undefined() && otherwise_ != nullptr && !otherwise_->is_none()) v = *otherwise_;
    }
    return v;
  }

 private:
  In& in_;
  std::vector<Value> path_;
  const Value* otherwise_;
};

// Python's sorted(): stable, also when reversed.
void sort_by_keys(In& in, std::vector<Value>& items, const std::vector<Value>& keys, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (reverse) std::swap(a, b);
    in.charge(1 + std::min(keys[a].weight(), keys[b].weight()));
    return less(keys[a], keys[b]);
  });
  std::vector<Value> sorted;
  sorted.reserve(items.size());
  for (size_t i : order) sorted.push_back(std::move(items[i]));
  items = std::move(sorted);
}

// ---- texts

template <const char* name>
Value string_method(In& in, const Value& v, Arguments& arguments) {
  return method_of_string(in, v, name, arguments);
}
constexpr char kUpper[] = "upper", kLower[] = "lower", kCapitalize[] = "capitalize", kStrip[] = "strip";

Value f_trim(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("trim", arguments, {"chars"});
  Arguments positional;
  if (bound.has(0)) positional.positional.push_back(*bound.get(0));
  return method_of_string(in, v, kStrip, positional);
}

Value f_title(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("title", arguments, {});
  const Value held = as_string(in, v);
  const JinjaText& text = held.as_text();
  in.charge(text.size() / 8);
  JinjaText out;
  // Words begin after white space and - ( { [ <; each is split off, its first character raised, the rest lowered.
  const auto separates = [](char32_t c) {
    return is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  for (size_t i = 0; i < text.size();) {
    const Utf8Char first = decode_utf8(text.view(), i);
    size_t end = i + first.size;
    const bool separator = separates(first.code_point);
    while (end < text.size()) {
      const Utf8Char c = decode_utf8(text.view(), end);
      if (separates(c.code_point) != separator) break;
      end += c.size;
    }
    out.append(change_case(text.slice(i, first.size), LetterCase::Upper));
    out.append(change_case(text.slice(i + first.size, end - i - first.size), LetterCase::Lower));
    i = end;
  }
  return in.make_text(std::move(out));
}

Value f_string(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("string", arguments, {});
  return as_string(in, v);
}

Value f_replace(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("replace", arguments, {"old", "new", "count"});
  Arguments positional;
  positional.positional = {as_string(in, bound.need(0)), as_string(in, bound.need(1)), bound.integer(2, -1)};
  return method_of_string(in, v, "replace", positional);
}

Value f_indent(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("indent", arguments, {"width", "first", "blank"});
  if (!v.is_string()) throw Error(fmt::format("indent needs a str, not {}", v.type_name()));
  JinjaText indent;
  if (bound.has(0) && bound.get(0)->is_string()) {
    indent = bound.get(0)->as_text();
  } else {
    const int64_t width = bound.integer(0, 4);
    if (width > static_cast<int64_t>(in.text_limit())) throw Error("indent: the width is too large");
    indent = JinjaText(std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' '), true);
  }
  JinjaText text = v.as_text();
  text.append("\n", true);  // so that the last line ends, as Jinja does
  const std::vector<JinjaText> lines = split_lines(text);
  JinjaText out;
  const bool blank = bound.flag(2, false);
  for (size_t i = 0; i < lines.size(); ++i) {
    in.charge();
    if (i > 0) out.append("\n", true);
    if (i == 0 ? bound.flag(1, false) : blank || !lines[i].empty()) out.append(indent);
    out.append(lines[i]);
    if (out.size() > in.text_limit()) break;
  }
  return in.make_text(std::move(out));
}

Value f_length(In&, const Value& v, Arguments& arguments);

Value f_truncate(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("truncate", arguments, {"length", "killwords", "end", "leeway"});
  Arguments none;
  if (!v.is_string()) {  // Python takes the length first, and cannot cut what is no string
    if (f_length(in, v, none).as_int() <= bound.integer(0, 255) + bound.integer(3, 5)) return v;
    throw Error(fmt::format("truncate needs a str, not {}", v.type_name()));
  }
  const Value held = as_string(in, v);
  const JinjaText& text = held.as_text();
  const JinjaText end = bound.has(2) ? bound.text(2) : JinjaText("...", true);
  const int64_t length = bound.integer(0, 255), leeway = bound.integer(3, 5);
  const int64_t end_size = static_cast<int64_t>(count_chars(end.view()));
  if (length < end_size) throw Error(fmt::format("expected length >= {}, got {}", end_size, length));
  if (leeway < 0) throw Error(fmt::format("expected leeway >= 0, got {}", leeway));
  const std::vector<size_t> offsets = char_offsets(text.view());
  const int64_t n = static_cast<int64_t>(offsets.size()) - 1;
  if (n <= length || n - length <= leeway) return held;
  JinjaText out = text.slice(0, offsets[static_cast<size_t>(length - end_size)]);
  if (!bound.flag(1, false)) {
    const size_t space = out.view().rfind(' ');
    if (space != std::string_view::npos) out = out.slice(0, space);
  }
  out.append(end);
  return in.make_text(std::move(out));
}

Value f_center(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("center", arguments, {"width"});
  Arguments positional;
  positional.positional = {bound.integer(0, 80)};
  return method_of_string(in, v, "center", positional);
}

Value f_format(In& in, const Value& v, Arguments& arguments) {
  if (!arguments.named.empty() && !arguments.positional.empty()) {
    throw Error("can't handle positional and keyword arguments at the same time");
  }
  Value values = Value::tuple(arguments.positional);
  if (!arguments.named.empty()) {
    std::vector<std::pair<Value, Value>> items;
    for (auto& [name, value] : arguments.named) items.emplace_back(trusted_text(name), value);
    values = Value::dict(std::move(items));
  }
  return in.binary("%", as_string(in, v), values);
}

Value f_escape(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("escape", arguments, {});
  const Value held = as_string(in, v);
  const JinjaText& text = held.as_text();
  JinjaText out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.view()[i];
    const std::string_view escaped = c == '&'    ? "&amp;"
                                     : c == '<'  ? "&lt;"
                                     : c == '>'  ? "&gt;"
                                     : c == '\'' ? "&#39;"
                                     : c == '"'  ? "&#34;"
                                                 : "";
    escaped.empty() ? out.append(text, i, 1) : out.append(escaped, text.trusted_at(i));
  }
  return in.make_text(std::move(out));
}

Value f_urlencode(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("urlencode", arguments, {});
  const auto quote = [&](const Value& part, bool query) {
    const JinjaText text = in.text_of(part);
    std::string out;
    for (char c : text.view()) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         c == '_' || c == '.' || c == '-' || c == '~' || (c == '/' && !query);
      out += plain               ? std::string(1, c)
             : c == ' ' && query ? "+"
                                 : fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
    return JinjaText(out, text.all_trusted());
  };
  if (v.is_string() || (!v.is(Kind::Dict) && !v.is_sequence())) return in.make_text(quote(v, false));
  JinjaText out;
  std::vector<Value> pairs;
  if (v.is(Kind::Dict)) {
    for (const auto& [key, value] : v.object_as<JinjaDict>().items)
      pairs.push_back(Value::tuple({key, value}));
  } else {
    pairs = v.items();
  }
  for (const Value& pair : pairs) {
    const std::vector<Value> two = in.iterate(pair);
    if (two.size() != 2) throw Error("urlencode needs pairs");
    if (!out.empty()) out.append("&", true);
    out.append(quote(two[0], true));
    out.append("=", true);
    out.append(quote(two[1], true));
  }
  return in.make_text(std::move(out));
}

Value f_wordcount(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("wordcount", arguments, {});
  const Value held = as_string(in, v);
  const std::string_view text = held.as_text().view();
  int64_t n = 0;
  bool inside = false;
  for (size_t i = 0; i < text.size();) {
    const Utf8Char c = decode_utf8(text, i);
    const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c.code_point));
    const bool word = c.valid && (c.code_point == '_' || is_python_alpha(c.code_point) ||
                                  (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO));
    n += word && !inside;
    inside = word;
    i += c.size;
  }
  return n;
}

Value f_tojson(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonDump style;
  style.ensure_ascii = bound.flag(0, false);
  if (bound.has(1) && !bound.get(1)->is_none()) {
    style.indented = true;
    if (bound.get(1)->is_string()) {
      style.indent = bound.get(1)->as_text().view();
    } else {
      const int64_t width = bound.integer(1, 0);
      if (width > 1000) throw Error("tojson: an indent past 1000 is not supported");
      style.indent = std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
  }
  if (bound.has(2) && !bound.get(2)->is_none()) {
    const std::vector<Value> two = in.iterate(*bound.get(2));
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string()) {
      throw Error("tojson: separators must be two strings");
    }
    style.default_separators = false;
    style.item_separator = two[0].as_text().view();
    style.key_separator = two[1].as_text().view();
  }
  style.sort_keys = bound.flag(3, false);
  if (v.is_undefined()) throw Error("Object of type Undefined is not JSON serializable");
  in.charge(v.weight());
  return in.make_text(to_json(v, style, in.text_limit()));
}

// ---- numbers

Value f_int(In&, const Value& v, Arguments& arguments) {
  JinjaBound bound("int", arguments, {"default", "base"});
  const Value otherwise = bound.has(0) ? *bound.get(0) : Value(0);
  if (v.is_undefined()) throw Error(v.undefined_message());
  if (v.is(Kind::Bool)) return v.as_int();
  if (v.is_integer()) return v;
  if (v.is(Kind::Float)) {
    if (std::isinf(v.as_float())) throw Error("cannot convert float infinity to integer");
    return std::isnan(v.as_float()) ? otherwise : Value(BigInt(v.as_float()));
  }
  if (!v.is_string()) return otherwise;
  BigInt parsed;
  if (parse_python_int(v.as_text().view(), static_cast<int>(bound.integer(1, 10)), parsed)) return parsed;
  double number;
  if (parse_python_float(v.as_text().view(), number) && std::isfinite(number)) return BigInt(number);
  return otherwise;
}

Value f_float(In&, const Value& v, Arguments& arguments) {
  JinjaBound bound("float", arguments, {"default"});
  if (v.is_undefined()) throw Error(v.undefined_message());
  if (v.is_number()) return to_double(v);
  double parsed;
  if (v.is_string() && parse_python_float(v.as_text().view(), parsed)) return parsed;
  return bound.has(0) ? *bound.get(0) : Value(0.0);
}

Value f_abs(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("abs", arguments, {});
  if (v.is(Kind::Float)) return std::fabs(v.as_float());
  if (!v.is_integer()) throw Error(fmt::format("bad operand type for abs(): '{}'", v.type_name()));
  return less(v, Value(0)) ? in.binary("-", Value(0), v) : in.binary("+", Value(0), v);
}

// Python's round(): half to even on the exact decimal value, which is what printf does.
double round_float(double value, int64_t digits) {
  if (!std::isfinite(value) || digits > 323) return value;
  if (digits < -308) return std::copysign(0.0, value);
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits));
    return std::nearbyint(value / scale) * scale;
  }
  return std::strtod(fmt::format("{:.{}f}", value, digits).c_str(), nullptr);
}

Value f_round(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("round", arguments, {"precision", "method"});
  const int64_t precision = bound.integer(0, 0);
  const std::string method(bound.has(1) ? bound.text(1).view() : "common");
  if (method != "common" && method != "ceil" && method != "floor")
    throw Error("method must be common, ceil or floor");
  if (v.is_undefined()) throw Error(v.undefined_message());
  if (!v.is_number()) throw Error(fmt::format("type {} doesn't define __round__ method", v.type_name()));
  if (method == "common") {
    if (v.is(Kind::Float)) return round_float(v.as_float(), precision);
    if (precision >= 0) return in.binary("+", v, Value(0));
    if (precision < -4000) return 0;
    const BigInt unit = boost::multiprecision::pow(BigInt(10), static_cast<unsigned>(-precision));
    BigInt rest, quotient;
    const BigInt magnitude = abs(big(v));
    boost::multiprecision::divide_qr(magnitude, unit, quotient, rest);
    if (rest * 2 > unit || (rest * 2 == unit && quotient % 2 != 0)) ++quotient;
    return BigInt(quotient * unit * (big(v) < 0 ? -1 : 1));
  }
  const Value scale = in.binary("**", Value(10), Value(precision));
  const Value scaled = in.binary("*", v, scale);
  if (!scaled.is(Kind::Float)) return in.binary("/", scaled, scale);
  if (!std::isfinite(scaled.as_float())) throw Error("cannot convert float infinity or NaN to integer");
  const double whole = method == "ceil" ? std::ceil(scaled.as_float()) : std::floor(scaled.as_float());
  return in.binary("/", Value(BigInt(whole)), scale);
}

// ---- containers

Value f_length(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("length", arguments, {});
  switch (v.kind()) {
    case Kind::Undefined:
      return 0;
    case Kind::String:
      return static_cast<int64_t>(count_chars(v.as_text().view()));
    case Kind::List:
    case Kind::Tuple:
      return static_cast<int64_t>(v.items().size());
    case Kind::Dict:
      return static_cast<int64_t>(v.object_as<JinjaDict>().items.size());
    case Kind::Loop:
      return in.attribute(v, "length");
    default:
      throw Error(fmt::format("object of type '{}' has no len()", v.type_name()));
  }
}

Value f_default(In&, const Value& v, Arguments& arguments) {
  JinjaBound bound("default", arguments, {"default_value", "boolean"});
  if (!v.is_undefined() && !(bound.flag(1, false) && !v.truth())) return v;
  return bound.has(0) ? *bound.get(0) : Value(JinjaText());
}

Value f_first(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("first", arguments, {});
  if (v.is(Kind::Generator)) {
    auto& generator = v.object_as<JinjaSequence>();
    if (generator.next < generator.items.size()) return generator.items[generator.next++];
    return Value::undefined("No first item, sequence was empty.");
  }
  if (v.is_string() || v.is_sequence()) {
    const Value first = in.item(v, Value(0));
    return first.is_undefined() ? Value::undefined("No first item, sequence was empty.") : first;
  }
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value::undefined("No first item, sequence was empty.") : items[0];
}

Value f_last(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("last", arguments, {});
  if (v.is(Kind::Generator)) {
    throw Error(fmt::format("'{}' object is not reversible", v.type_name()));
  }
  if (v.is_string() || v.is_sequence()) {
    const Value last = in.item(v, Value(-1));
    return last.is_undefined() ? Value::undefined("No last item, sequence was empty.") : last;
  }
  const std::vector<Value> items = in.iterate(v);
  return items.empty() ? Value::undefined("No last item, sequence was empty.") : items.back();
}

Value f_list(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("list", arguments, {});
  return Value::list(in.iterate(v));
}

Value f_reverse(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("reverse", arguments, {});
  if (v.is_string()) {
    JinjaText out;
    const std::vector<size_t> offsets = char_offsets(v.as_text().view());
    in.charge(offsets.size() / 8);
    for (size_t i = offsets.size() - 1; i > 0; --i)
      out.append(v.as_text(), offsets[i - 1], offsets[i] - offsets[i - 1]);
    return in.make_text(std::move(out));
  }
  std::vector<Value> items = in.iterate(v);
  std::reverse(items.begin(), items.end());
  return v.is(Kind::Generator) || v.is_undefined() ? Value::list(std::move(items))
                                                   : Value::generator(std::move(items));
}

Value f_items(In& in, const Value& v, Arguments& arguments) {
  JinjaBound("items", arguments, {});
  if (v.is_undefined()) return Value::generator({});
  if (!v.is(Kind::Dict)) throw Error("Can only get item pairs from a mapping.");
  std::vector<Value> pairs;
  for (const auto& [key, value] : v.object_as<JinjaDict>().items) {
    in.charge();
    pairs.push_back(Value::tuple({key, value}));
  }
  return Value::generator(std::move(pairs));
}

Value f_dictsort(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by(bound.has(1) ? bound.text(1).view() : "key");
  if (by != "key" && by != "value") throw Error("You can only sort by either \"key\" or \"value\"");
  if (v.is_undefined()) throw Error(v.undefined_message());
  if (!v.is(Kind::Dict)) throw Error(fmt::format("'{}' object has no attribute 'items'", v.type_name()));
  std::vector<Value> pairs, keys;
  for (const auto& [key, value] : v.object_as<JinjaDict>().items) {
    const Value& sorted = by == "key" ? key : value;
    keys.push_back(bound.flag(0, false) ? sorted : ignore_case(sorted));
    pairs.push_back(Value::tuple({key, value}));
  }
  sort_by_keys(in, pairs, keys, bound.flag(2, false));
  return Value::list(std::move(pairs));
}

Value f_sort(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"});
  std::vector<Value> items = in.iterate(v), keys;
  std::vector<AttributeGetter> getters;
  if (bound.has(2) && bound.get(2)->is_string()) {
    const std::string comma = ",";
    for (const JinjaText& part : split(bound.get(2)->as_text(), &comma, -1)) {
      const Value attribute(part);
      getters.emplace_back(in, &attribute);
    }
  } else {
    getters.emplace_back(in, bound.get(2));
  }
  for (const Value& item : items) {
    std::vector<Value> key;
    for (const auto& get : getters) key.push_back(bound.flag(1, false) ? get(item) : ignore_case(get(item)));
    keys.push_back(Value::list(std::move(key)));
  }
  sort_by_keys(in, items, keys, bound.flag(0, false));
  return Value::list(std::move(items));
}

Value f_unique(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("unique", arguments, {"case_sensitive", "attribute"});
  const AttributeGetter get(in, bound.get(1));
  std::unordered_map<std::string, bool> seen;
  std::vector<Value> out;
  for (Value& item : in.iterate(v)) {
    const Value key = bound.flag(0, false) ? get(item) : ignore_case(get(item));
    in.charge(key.weight());
    if (seen.try_emplace(hash_key(key), true).second) out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

template <bool largest>
Value f_extreme(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound(largest ? "max" : "min", arguments, {"case_sensitive", "attribute"});
  const AttributeGetter get(in, bound.get(1));
  const std::vector<Value> items = in.iterate(v);
  if (items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  for (size_t i = 0; i < items.size(); ++i) {
    const Value key = bound.flag(0, false) ? get(items[i]) : ignore_case(get(items[i]));
    in.charge(key.weight());
    if (i == 0 || (largest ? less(best_key, key) : less(key, best_key))) {
      best = i;
      best_key = key;
    }
  }
  return items[best];
}

Value f_sum(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("sum", arguments, {"attribute", "start"});
  const AttributeGetter get(in, bound.get(0));
  Value total = bound.has(1) ? *bound.get(1) : Value(0);
  if (total.is_string()) throw Error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : in.iterate(v)) total = in.binary("+", total, get(item));
  return total;
}

Value f_join(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("join", arguments, {"d", "attribute"});
  const AttributeGetter get(in, bound.get(1));
  const JinjaText separator = bound.has(0) ? in.text_of(*bound.get(0)) : JinjaText();
  JinjaText out;
  bool first = true;
  for (const Value& item : in.iterate(v)) {
    if (!first) out.append(separator);
    first = false;
    out.append(in.text_of(get(item)));
    if (out.size() > in.text_limit()) break;  // make_text refuses it
  }
  return in.make_text(std::move(out));
}

Value f_map(In& in, const Value& v, Arguments& arguments) {
  std::vector<Value> out;
  if (!v.truth()) return Value::generator({});
  if (arguments.positional.empty()) {
    JinjaBound bound("map", arguments, {"attribute", "default"});
    if (!bound.has(0)) throw Error("map requires a filter argument");
    const AttributeGetter get(in, bound.get(0), bound.get(1));
    for (const Value& item : in.iterate(v)) out.push_back(get(item));
    return Value::generator(std::move(out));
  }
  const std::string name(in.text_of(arguments.positional[0]).view());
  for (const Value& item : in.iterate(v)) {
    Arguments rest;
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
    out.push_back(in.filter(name, item, rest));
  }
  return Value::generator(std::move(out));
}

template <bool keep, bool by_attribute>
Value f_select(In& in, const Value& v, Arguments& arguments) {
  if (!v.truth()) return Value::generator({});
  const size_t off = by_attribute ? 1 : 0;
  if (arguments.positional.size() < off) throw Error("Missing parameter for attribute name");
  const AttributeGetter get(in, by_attribute ? &arguments.positional[0] : nullptr);
  std::vector<Value> out;
  for (Value& item : in.iterate(v)) {
    const Value tested = get(item);
    bool holds;
    if (arguments.positional.size() > off) {
      Arguments rest;
      rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(off) + 1,
                             arguments.positional.end());
      rest.named = arguments.named;
      holds = in.test(in.text_of(arguments.positional[off]).view(), tested, rest);
    } else {
      holds = tested.truth();
    }
    if (holds == keep) out.push_back(std::move(item));
  }
  return Value::generator(std::move(out));
}

Value f_batch(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("batch", arguments, {"linecount", "fill_with"});
  const int64_t size = (bound.need(0), bound.integer(0, 0));
  std::vector<Value> rows, row;
  for (Value& item : in.iterate(v)) {
    if (static_cast<int64_t>(row.size()) == size) {
      rows.push_back(Value::list(std::move(row)));
      row.clear();
    }
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (bound.has(1) && !bound.get(1)->is_none()) {
      for (; static_cast<int64_t>(row.size()) < size; in.charge()) row.push_back(*bound.get(1));
    }
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::generator(std::move(rows));
}

Value f_slice(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("slice", arguments, {"slices", "fill_with"});
  const int64_t slices = (bound.need(0), bound.integer(0, 0));
  if (slices == 0) throw Error("integer division or modulo by zero");
  const std::vector<Value> items = in.iterate(v);
  std::vector<Value> out;
  if (slices < 0) return Value::generator({});
  const size_t n = static_cast<size_t>(slices), each = items.size() / n, extra = items.size() % n;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    in.charge();
    const size_t size = each + (i < extra ? 1 : 0);
    std::vector<Value> part(items.begin() + static_cast<ptrdiff_t>(at),
                            items.begin() + static_cast<ptrdiff_t>(at + size));
    at += size;
    if (bound.has(1) && !bound.get(1)->is_none() && i >= extra) part.push_back(*bound.get(1));
    out.push_back(Value::list(std::move(part)));
  }
  return Value::generator(std::move(out));
}

Value f_groupby(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("groupby", arguments, {"attribute", "default", "case_sensitive"});
  const AttributeGetter get((bound.need(0), in), bound.get(0), bound.get(1));
  std::vector<Value> items = in.iterate(v), keys;
  for (const Value& item : items) keys.push_back(bound.flag(2, false) ? get(item) : ignore_case(get(item)));
  sort_by_keys(in, items, keys, false);
  std::vector<Value> groups, group;
  Value group_key;
  const auto flush = [&] {
    if (group.empty()) return;
    const Value shown = get(group[0]);
    Value pair = Value::tuple({shown, Value::list(std::move(group))});
    pair.object_as<JinjaSequence>().grouped = true;
    groups.push_back(std::move(pair));
    group.clear();
  };
  for (Value& item : items) {
    Value key = bound.flag(2, false) ? get(item) : ignore_case(get(item));
    if (!group.empty() && !equal(key, group_key)) flush();
    group_key = std::move(key);
    group.push_back(std::move(item));
  }
  flush();
  return Value::list(std::move(groups));
}

Value f_attr(In& in, const Value& v, Arguments& arguments) {
  JinjaBound bound("attr", arguments, {"name"});
  // Unlike a dot, |attr does not fall back to the item of that name.
  const Value found = v.is(Kind::Dict) || v.is_string() || v.is_sequence()
                          ? find_method(v, bound.text(0).view())
                          : in.attribute(v, bound.text(0).view());
  return found.is_undefined() && !found.object()
             ? Value::undefined(
                   fmt::format("'{} object' has no attribute '{}'", v.type_name(), bound.text(0).view()))
             : found;
}

Value f_safe(In&, const Value& v, Arguments& arguments) {
  JinjaBound("safe", arguments, {});
  return v;
}

struct FilterEntry {
  std::string_view name;
  JinjaFilter filter;
};
constexpr FilterEntry kFilters[] = {
    {"abs", f_abs},
    {"attr", f_attr},
    {"batch", f_batch},
    {"capitalize", string_method<kCapitalize>},
    {"center", f_center},
    {"count", f_length},
    {"d", f_default},
    {"default", f_default},
    {"dictsort", f_dictsort},
    {"e", f_escape},
    {"escape", f_escape},
    {"first", f_first},
    {"float", f_float},
    {"forceescape", f_escape},
    {"format", f_format},
    {"groupby", f_groupby},
    {"indent", f_indent},
    {"int", f_int},
    {"items", f_items},
    {"join", f_join},
    {"last", f_last},
    {"length", f_length},
    {"list", f_list},
    {"lower", string_method<kLower>},
    {"map", f_map},
    {"max", f_extreme<true>},
    {"min", f_extreme<false>},
    {"reject", f_select<false, false>},
    {"rejectattr", f_select<false, true>},
    {"replace", f_replace},
    {"reverse", f_reverse},
    {"round", f_round},
    {"safe", f_safe},
    {"select", f_select<true, false>},
    {"selectattr", f_select<true, true>},
    {"slice", f_slice},
    {"sort", f_sort},
    {"string", f_string},
    {"sum", f_sum},
    {"title", f_title},
    {"tojson", f_tojson},
    {"trim", f_trim},
    {"truncate", f_truncate},
    {"unique", f_unique},
    {"upper", string_method<kUpper>},
    {"urlencode", f_urlencode},
    {"wordcount", f_wordcount},
};

std::string python_stripped(std::string_view text) {
  return std::string(strip(JinjaText(std::string(text), true), true, true).view());
}

// Removes single underscores between digits; false where one stands elsewhere.
bool drop_underscores(std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      return false;
    }
  }
  text = std::move(out);
  return true;
}

}  // namespace

bool parse_python_int(std::string_view text, int base, BigInt& value) {
  if (base != 0 && (base < 2 || base > 36)) throw Error("int() base must be >= 2 and <= 36, or 0");
  std::string s = python_stripped(text);
  bool negative = false;
  if (!s.empty() && (s[0] == '-' || s[0] == '+')) {
    negative = s[0] == '-';
    s.erase(0, 1);
  }
  if (s.size() > 2 && s[0] == '0') {
    const char prefix = static_cast<char>(s[1] | 0x20);
    const int named = prefix == 'x' ? 16 : prefix == 'o' ? 8 : prefix == 'b' ? 2 : 0;
    if (named != 0 && (base == 0 || base == named)) {
      base = named;
      s.erase(0, s[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) base = 10;
  if (!drop_underscores(s) || s.empty()) return false;
  if (s.size() > 4300) throw Error("Exceeds the limit (4300 digits) for integer string conversion");
  for (char c : s) {
    const int digit = c >= '0' && c <= '9'                     ? c - '0'
                      : (c | 0x20) >= 'a' && (c | 0x20) <= 'z' ? (c | 0x20) - 'a' + 10
                                                               : 99;
    if (digit >= base) return false;
  }
  value = big_from_digits(s, base);
  if (negative) value = -value;
  return true;
}

bool parse_python_float(std::string_view text, double& value) {
  std::string s = python_stripped(text);
  if (s.size() > 10'000 || !drop_underscores(s)) return false;
  std::string lower = s;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string_view body =
      std::string_view(lower).substr(!lower.empty() && (lower[0] == '-' || lower[0] == '+'));
  if (body.empty()) return false;
  if (body != "inf" && body != "infinity" && body != "nan") {
    if (body.find_first_not_of("0123456789.e+-") != body.npos) return false;
    if (!(body[0] >= '0' && body[0] <= '9') && body[0] != '.') return false;
  }
  char* end = nullptr;
  value = std::strtod(s.c_str(), &end);
  return end == s.c_str() + s.size() && end != s.c_str();
}

JinjaFilter find_filter(std::string_view name) {
  for (const FilterEntry& entry : kFilters) {
    if (entry.name == name) return entry.filter;
  }
  return nullptr;
}

}  // namespace quern
