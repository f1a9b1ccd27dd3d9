#include "text/jinja_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace quern {

namespace {

using Kind = JinjaValue::Kind;

// Adds a child to what `parent` says of its depth and weight.
void account(JinjaObject& parent, const JinjaValue& child) {
  if (child.object()) parent.depth = std::max(parent.depth, child.object()->depth + 1);
  parent.weight += child.weight();
  if (parent.depth > kMaxValueDepth) {
    throw Error(fmt::format("a value nests deeper than {} levels", kMaxValueDepth));
  }
  if (parent.weight > kMaxValueWeight) {
    throw Error(fmt::format("a value holds more than {} items", kMaxValueWeight));
  }
}

std::string big_text(const BigInt& value) {
  // Python refuses to print more than 4300 digits, and so the work here is bounded.
  if (boost::multiprecision::msb(abs(value) + 1) > 14'280)
    throw Error("an integer has more than 4300 digits");
  return value.str();
}

}  // namespace

JinjaValue::JinjaValue(JinjaText text) : kind_(Kind::String) {
  auto object = std::make_shared<JinjaString>();
  object->weight += text.size() / 64;
  object->text = std::move(text);
  object_ = std::move(object);
}

JinjaValue::JinjaValue(BigInt v) : kind_(Kind::Int) {
  if (v >= std::numeric_limits<int64_t>::min() && v <= std::numeric_limits<int64_t>::max()) {
    scalar_.i = static_cast<int64_t>(v);
    return;
  }
  kind_ = Kind::BigInt;
  auto object = std::make_shared<JinjaBigInt>();
  object->value = std::move(v);
  object_ = std::move(object);
}

JinjaValue JinjaValue::none() {
  JinjaValue v;
  v.kind_ = Kind::None;
  return v;
}

JinjaValue JinjaValue::undefined(std::string message) {
  auto object = std::make_shared<JinjaUndefined>();
  object->message = std::move(message);
  return JinjaValue(Kind::Undefined, std::move(object));
}

JinjaValue JinjaValue::sequence(Kind kind, std::vector<JinjaValue> items) {
  auto object = std::make_shared<JinjaSequence>();
  for (const JinjaValue& item : items) account(*object, item);
  object->items = std::move(items);
  return JinjaValue(kind, std::move(object));
}

JinjaValue JinjaValue::dict(std::vector<std::pair<JinjaValue, JinjaValue>> items) {
  auto object = std::make_shared<JinjaDict>();
  for (auto& [key, value] : items) {
    account(*object, key);
    account(*object, value);
    const auto [at, added] = object->index.try_emplace(hash_key(key), object->items.size());
    if (added)
      object->items.emplace_back(std::move(key), std::move(value));
    else
      object->items[at->second].second = std::move(value);
  }
  return JinjaValue(Kind::Dict, std::move(object));
}

JinjaValue JinjaValue::from_json(const Json& json, bool trusted) {
  switch (json.kind()) {
    case Json::Kind::Null:
      return none();
    case Json::Kind::Bool:
      return json.as_bool();
    case Json::Kind::Int:
      return json.as_int();
    case Json::Kind::BigInt:
      return json.big_digits().size() > 4300 ? throw Error("an integer has more than 4300 digits")
                                             : JinjaValue(BigInt(json.big_digits()));
    case Json::Kind::Float:
      return json.as_double();
    case Json::Kind::String:
      return JinjaText(json.as_string(), trusted);
    case Json::Kind::Array: {
      std::vector<JinjaValue> items;
      items.reserve(json.size());
      for (const Json& item : json.as_array()) items.push_back(from_json(item, trusted));
      return list(std::move(items));
    }
    case Json::Kind::Object: {
      std::vector<std::pair<JinjaValue, JinjaValue>> items;
      items.reserve(json.size());
      for (const auto& [key, value] : json.as_object()) {
        items.emplace_back(JinjaText(key, trusted), from_json(value, trusted));
      }
      return dict(std::move(items));
    }
  }
  return none();
}

const JinjaText& JinjaValue::as_text() const { return object_as<JinjaString>().text; }
std::vector<JinjaValue>& JinjaValue::items() const { return object_as<JinjaSequence>().items; }

bool JinjaValue::truth() const {
  switch (kind_) {
    case Kind::Undefined:
    case Kind::None:
      return false;
    case Kind::Bool:
    case Kind::Int:
      return scalar_.i != 0;
    case Kind::Float:
      return scalar_.f != 0;
    case Kind::String:
      return !as_text().empty();
    case Kind::List:
    case Kind::Tuple:
      return !items().empty();
    case Kind::Dict:
      return !object_as<JinjaDict>().items.empty();
    default:
      return true;
  }
}

std::string JinjaValue::undefined_message() const {
  return object_ ? object_as<JinjaUndefined>().message : "a value is undefined";
}

std::string_view JinjaValue::type_name() const {
  static constexpr std::string_view kNames[] = {
      "Undefined", "NoneType", "bool",      "int",  "int",       "float",       "str",
      "list",      "tuple",    "generator", "dict", "Namespace", "LoopContext", "function"};
  return kNames[static_cast<int>(kind_)];
}

const JinjaValue* JinjaDict::find(std::string_view string_key) const {
  if (items.size() <= 8) {
    for (const auto& [key, value] : items) {
      if (key.is_string() && key.as_text().view() == string_key) return &value;
    }
    return nullptr;
  }
  const auto at = index.find("s" + std::string(string_key));
  return at == index.end() ? nullptr : &items[at->second].second;
}

const JinjaValue* JinjaDict::find(const JinjaValue& key) const {
  if (key.is_string()) return find(key.as_text().view());
  const auto at = index.find(hash_key(key));
  return at == index.end() ? nullptr : &items[at->second].second;
}

std::string hash_key(const JinjaValue& value) {
  switch (value.kind()) {
    case Kind::Undefined:
      return "u";
    case Kind::None:
      return "n";
    case Kind::Bool:
    case Kind::Int:
      return "i" + std::to_string(value.as_int());
    case Kind::BigInt:
      return "i" + big_text(big(value));
    case Kind::Float: {
      const double f = value.as_float();
      if (std::isfinite(f) && f == std::floor(f)) return "i" + big_text(BigInt(f));
      return "f" + python_float(f);
    }
    case Kind::String:
      return "s" + std::string(value.as_text().view());
    case Kind::Tuple: {
      std::string key = "t";
      for (const JinjaValue& item : value.items()) {
        const std::string part = hash_key(item);
        key += std::to_string(part.size()) + ":" + part;
      }
      return key;
    }
    case Kind::List:
    case Kind::Dict:
      throw Error(fmt::format("unhashable type: '{}'", value.type_name()));
    default:
      return fmt::format("p{}", static_cast<const void*>(value.object().get()));
  }
}

BigInt big(const JinjaValue& integer) {
  return integer.is(Kind::BigInt) ? integer.object_as<JinjaBigInt>().value : BigInt(integer.as_int());
}

BigInt big_from_digits(std::string_view digits, int base) {
  BigInt value = 0;
  for (char c : digits) {
    value *= base;
    value += c >= '0' && c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
  }
  return value;
}

double to_double(const JinjaValue& number) {
  if (number.is(Kind::Float)) return number.as_float();
  if (!number.is(Kind::BigInt)) return static_cast<double>(number.as_int());
  const double d = static_cast<double>(big(number));
  if (std::isinf(d)) throw Error("int too large to convert to float");
  return d;
}

namespace {

// -1, 0, 1; 2 where a NaN is in it. An integer against a float compares exactly, as in Python.
int compare_numbers(const JinjaValue& a, const JinjaValue& b) {
  if (a.is(Kind::Float) && b.is(Kind::Float)) {
    const double x = a.as_float(), y = b.as_float();
    return x < y ? -1 : x > y ? 1 : x == y ? 0 : 2;
  }
  if (a.is(Kind::Float)) {
    const int c = compare_numbers(b, a);
    return c == 2 ? 2 : -c;
  }
  if (b.is(Kind::Float)) {
    const double y = b.as_float();
    if (std::isnan(y)) return 2;
    if (std::isinf(y)) return y > 0 ? -1 : 1;
    const int c = big(a).compare(BigInt(std::floor(y)));
    return c != 0 ? (c < 0 ? -1 : 1) : (y > std::floor(y) ? -1 : 0);
  }
  if (!a.is(Kind::BigInt) && !b.is(Kind::BigInt)) {
    return a.as_int() < b.as_int() ? -1 : a.as_int() > b.as_int() ? 1 : 0;
  }
  const int c = big(a).compare(big(b));
  return c < 0 ? -1 : c > 0 ? 1 : 0;
}

}  // namespace

bool equal(const JinjaValue& a, const JinjaValue& b) {
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::Undefined:
    case Kind::None:
      return true;
    case Kind::String:
      return a.as_text().view() == b.as_text().view();
    case Kind::List:
    case Kind::Tuple:
      return a.object() == b.object() ||
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
    case Kind::Dict: {
      if (a.object() == b.object()) return true;
      const auto& left = a.object_as<JinjaDict>();
      const auto& right = b.object_as<JinjaDict>();
      if (left.items.size() != right.items.size()) return false;
      for (const auto& [key, value] : left.items) {
        const JinjaValue* other = right.find(key);
        if (other == nullptr || !equal(value, *other)) return false;
      }
      return true;
    }
    default:
      return a.object() == b.object();
  }
}

bool less(const JinjaValue& a, const JinjaValue& b) {
  for (const JinjaValue* v : {&a, &b}) {
    if (v->is_undefined()) throw Error(v->undefined_message());
  }
  if (a.is_number() && b.is_number()) return compare_numbers(a, b) == -1;
  if (a.is_string() && b.is_string()) return a.as_text().view() < b.as_text().view();
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i])) return less(x[i], y[i]);
    }
    return x.size() < y.size();
  }
  throw Error(
      fmt::format("'<' not supported between instances of '{}' and '{}'", a.type_name(), b.type_name()));
}

bool contains(const JinjaValue& container, const JinjaValue& item) {
  switch (container.kind()) {
    case Kind::Undefined:
      return false;
    case Kind::String:
      if (!item.is_string()) {
        throw Error(fmt::format("'in <string>' requires string as left operand, not {}", item.type_name()));
      }
      return container.as_text().view().find(item.as_text().view()) != std::string_view::npos;
    case Kind::List:
    case Kind::Tuple:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const JinjaValue& v) { return equal(v, item); });
    case Kind::Generator: {
      auto& generator = container.object_as<JinjaSequence>();
      while (generator.next < generator.items.size()) {
        if (equal(generator.items[generator.next++], item)) return true;
      }
      return false;
    }
    case Kind::Dict:
      return container.object_as<JinjaDict>().find(item) != nullptr;
    default:
      throw Error(fmt::format("argument of type '{}' is not iterable", container.type_name()));
  }
}

namespace {

class Printer {
 public:
  Printer(JinjaText& out, size_t limit) : out_(out), limit_(limit) {}

  void put(std::string_view bytes, bool trusted = true) {
    out_.append(bytes, trusted);
    check();
  }
  void put(const JinjaText& text) {
    out_.append(text);
    check();
  }

  void print(const JinjaValue& v, bool as_repr) {
    switch (v.kind()) {
      case Kind::Undefined:
        return put(as_repr ? "Undefined" : "");
      case Kind::None:
        return put("None");
      case Kind::Bool:
        return put(v.as_bool() ? "True" : "False");
      case Kind::Int:
        return put(std::to_string(v.as_int()));
      case Kind::BigInt:
        return put(big_text(big(v)));
      case Kind::Float:
        return put(python_float(v.as_float()));
      case Kind::String:
        return put(as_repr ? repr(v.as_text()) : v.as_text());
      case Kind::List: {
        const std::string& shown = v.object_as<JinjaSequence>().shown;
        return shown.empty() ? print_items(v.items(), "[", "]") : put(shown);
      }
      case Kind::Tuple:
        return print_items(v.items(), "(", v.items().size() == 1 ? ",)" : ")");
      case Kind::Dict: {
        put("{");
        bool first = true;
        for (const auto& [key, value] : v.object_as<JinjaDict>().items) {
          if (!first) put(", ");
          first = false;
          print(key, true);
          put(": ");
          print(value, true);
        }
        return put("}");
      }
      case Kind::Namespace: {  // attributes may lead back to it, so they are not walked
        return put("<Namespace>");
      }
      default:
        return put(fmt::format("<{}>", v.type_name()));
    }
  }

  void json(const JinjaValue& v, const JsonDump& style, int level) {
    switch (v.kind()) {
      case Kind::None:
        return put("null");
      case Kind::Bool:
        return put(v.as_bool() ? "true" : "false");
      case Kind::Int:
      case Kind::BigInt:
        return print(v, false);
      case Kind::Float: {
        const double f = v.as_float();
        return put(std::isnan(f)   ? "NaN"
                   : std::isinf(f) ? (f > 0 ? "Infinity" : "-Infinity")
                                   : python_float(f));
      }
      case Kind::String:
        return json_string(v.as_text(), style);
      case Kind::List:
      case Kind::Tuple: {
        if (!v.object_as<JinjaSequence>().shown.empty()) {
          throw Error("Object of type range is not JSON serializable");
        }
        if (v.items().empty()) return put("[]");
        put("[");
        bool first = true;
        for (const JinjaValue& item : v.items()) {
          separate(first, style, level + 1);
          json(item, style, level + 1);
        }
        return close("]", style, level);
      }
      case Kind::Dict: {
        const auto& items = v.object_as<JinjaDict>().items;
        if (items.empty()) return put("{}");
        std::vector<const std::pair<JinjaValue, JinjaValue>*> order;
        for (const auto& item : items) order.push_back(&item);
        if (style.sort_keys) {
          std::stable_sort(order.begin(), order.end(),
                           [](auto a, auto b) { return less(a->first, b->first); });
        }
        put("{");
        bool first = true;
        for (const auto* item : order) {
          separate(first, style, level + 1);
          json_key(item->first, style);
          put(style.default_separators ? ": " : style.key_separator);
          json(item->second, style, level + 1);
        }
        return close("}", style, level);
      }
      default:
        throw Error(fmt::format("Object of type {} is not JSON serializable", v.type_name()));
    }
  }

 private:
  void check() const {
    if (out_.size() > limit_) throw Error(fmt::format("a text grew past the limit of {} bytes", limit_));
  }

  void print_items(const std::vector<JinjaValue>& items, std::string_view open, std::string_view end) {
    put(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) put(", ");
      print(items[i], true);
    }
    put(end);
  }

  void new_line(const JsonDump& style, int level) {
    put("\n");
    for (int i = 0; i < level; ++i) put(style.indent);
  }
  void separate(bool& first, const JsonDump& style, int level) {
    if (!first) put(style.default_separators ? (style.indented ? "," : ", ") : style.item_separator);
    first = false;
    if (style.indented) new_line(style, level);
  }
  void close(std::string_view end, const JsonDump& style, int level) {
    if (style.indented) new_line(style, level);
    put(end);
  }

  void json_string(const JinjaText& text, const JsonDump& style) {
    std::string quoted;
    append_json_string(quoted, text.view(), style.ensure_ascii);
    put(quoted, text.all_trusted());
  }

  void json_key(const JinjaValue& key, const JsonDump& style) {
    if (key.is_string()) return json_string(key.as_text(), style);
    if (!key.is_number() && !key.is_none()) {
      throw Error(fmt::format("keys must be str, int, float, bool or None, not {}", key.type_name()));
    }
    put("\"");
    json(key, style, 0);
    put("\"");
  }

  JinjaText& out_;
  size_t limit_;
};

}  // namespace

JinjaText to_text(const JinjaValue& value, size_t limit) {
  if (value.is_string()) return value.as_text();
  JinjaText out;
  Printer(out, limit).print(value, false);
  return out;
}

JinjaText to_repr(const JinjaValue& value, size_t limit) {
  JinjaText out;
  Printer(out, limit).print(value, true);
  return out;
}

JinjaText to_json(const JinjaValue& value, const JsonDump& style, size_t limit) {
  JinjaText out;
  Printer(out, limit).json(value, style, 0);
  // One origin for the whole, so that quotes and commas do not cut the input into many pieces.
  return out.all_trusted() ? out : JinjaText(std::string(out.view()), false);
}

}  // namespace quern
