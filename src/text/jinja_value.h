// A value of the template language: what Python's value would be, with the same printing, comparison and hashing.
//
// Values are immutable and shared, except a namespace, a generator's position, and a list's pop(). A value's depth
// and weight are bounded when it is made, so that walking, comparing or freeing one neither overflows the stack nor
// takes for ever (a list that holds itself twice, forty times over, is 2^40 items).
#pragma once

#include <boost/multiprecision/cpp_int.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "text/jinja_text.h"

namespace quern {

using BigInt = boost::multiprecision::cpp_int;

inline constexpr int kMaxValueDepth = 320;  // above JsonLimits::max_depth
inline constexpr uint64_t kMaxValueWeight = 4'000'000;

class JinjaValue;
class JinjaInterpreter;

struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> named;
};

struct JinjaObject {
  virtual ~JinjaObject() = default;
  int depth = 1;
  uint64_t weight =
      1;  // items below it, shared ones counted each time, a string's bytes / 64: the cost of a walk
};

class JinjaValue {
 public:
  enum class Kind : uint8_t {
    Undefined,
    None,
    Bool,
    Int,
    BigInt,
    Float,
    String,
    List,
    Tuple,
    Generator,
    Dict,
    Namespace,
    Loop,
    Callable
  };

  JinjaValue() = default;  // undefined without a name
  JinjaValue(bool v) : kind_(Kind::Bool) { scalar_.i = v; }
  JinjaValue(int v) : kind_(Kind::Int) { scalar_.i = v; }
  JinjaValue(int64_t v) : kind_(Kind::Int) { scalar_.i = v; }
  JinjaValue(double v) : kind_(Kind::Float) { scalar_.f = v; }
  JinjaValue(JinjaText text);
  JinjaValue(BigInt v);  // an Int where it fits
  JinjaValue(const char*) = delete;
  JinjaValue(Kind kind, std::shared_ptr<JinjaObject> object) : kind_(kind), object_(std::move(object)) {}

  static JinjaValue none();
  // Undefined, with the message that using it raises. `refused`: calling it says so (a sandboxed attribute).
  static JinjaValue undefined(std::string message);
  static JinjaValue list(std::vector<JinjaValue> items) { return sequence(Kind::List, std::move(items)); }
  static JinjaValue tuple(std::vector<JinjaValue> items) { return sequence(Kind::Tuple, std::move(items)); }
  static JinjaValue generator(std::vector<JinjaValue> items) {
    return sequence(Kind::Generator, std::move(items));
  }
  // Later duplicates replace the value and keep the place. Throws Error where a key cannot be hashed.
  static JinjaValue dict(std::vector<std::pair<JinjaValue, JinjaValue>> items);
  static JinjaValue from_json(const Json& json, bool trusted);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::Undefined; }
  bool is_none() const { return kind_ == Kind::None; }
  bool is_string() const { return kind_ == Kind::String; }
  bool is_integer() const { return kind_ == Kind::Bool || kind_ == Kind::Int || kind_ == Kind::BigInt; }
  bool is_number() const { return is_integer() || kind_ == Kind::Float; }
  bool is_sequence() const { return kind_ == Kind::List || kind_ == Kind::Tuple; }

  bool as_bool() const { return scalar_.i != 0; }  // of a Bool
  int64_t as_int() const { return scalar_.i; }     // of a Bool or Int
  double as_float() const { return scalar_.f; }    // of a Float
  const JinjaText& as_text() const;                // of a String
  std::vector<JinjaValue>& items() const;          // of a List, Tuple or Generator
  const std::shared_ptr<JinjaObject>& object() const { return object_; }
  template <class T>
  T& object_as() const {
    return static_cast<T&>(*object_);
  }

  bool truth() const;
  uint64_t weight() const { return object_ ? object_->weight : 1; }
  std::string undefined_message() const;
  // 'str', 'int', 'NoneType', …: Python's name of the type.
  std::string_view type_name() const;

 private:
  static JinjaValue sequence(Kind kind, std::vector<JinjaValue> items);

  Kind kind_ = Kind::Undefined;
  union Scalar {
    int64_t i;
    double f;
  } scalar_{0};
  std::shared_ptr<JinjaObject> object_;
};

struct JinjaString : JinjaObject {
  JinjaText text;
};
struct JinjaBigInt : JinjaObject {
  BigInt value;
};
struct JinjaUndefined : JinjaObject {
  std::string message;
};
struct JinjaSequence : JinjaObject {
  std::vector<JinjaValue> items;
  size_t next = 0;       // of a generator: what is consumed
  bool grouped = false;  // a pair made by groupby: has .grouper and .list
  std::string shown;     // of a range: how it prints
};
struct JinjaDict : JinjaObject {
  std::vector<std::pair<JinjaValue, JinjaValue>> items;
  std::unordered_map<std::string, size_t> index;  // by hash_key
  const JinjaValue* find(std::string_view string_key) const;
  const JinjaValue* find(const JinjaValue& key) const;  // throws Error on a key that cannot be hashed
};
struct JinjaNamespace : JinjaObject {
  std::vector<std::pair<std::string, JinjaValue>> attributes;
};
struct JinjaCallable : JinjaObject {
  std::string name;
  std::function<JinjaValue(JinjaInterpreter&, JinjaArguments&)> call;
  // Of a macro: what `macro.name`, `.arguments`, `.caller` … read.
  std::vector<std::pair<std::string, JinjaValue>> attributes;
};

// Equal values have equal keys (1, 1.0 and true are one). Throws Error("unhashable type: 'list'").
std::string hash_key(const JinjaValue& value);
bool equal(const JinjaValue& a, const JinjaValue& b);
// a < b as Python orders numbers, strings, lists and tuples; Error where it does not.
bool less(const JinjaValue& a, const JinjaValue& b);
// `item in container`
bool contains(const JinjaValue& container, const JinjaValue& item);

// str(value), and repr(value) as it appears inside a list. Output past `limit` bytes is an Error.
JinjaText to_text(const JinjaValue& value, size_t limit);
JinjaText to_repr(const JinjaValue& value, size_t limit);
// json.dumps(value, ensure_ascii=False, …); separators empty: Python's defaults for the indent.
struct JsonDump {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  std::string indent;
  std::string item_separator, key_separator;
  bool default_separators = true;
};
JinjaText to_json(const JinjaValue& value, const JsonDump& style, size_t limit);

BigInt big(const JinjaValue& integer);  // of any integer
// Letters of either case are digits past 9; the caller has checked them against `base`.
BigInt big_from_digits(std::string_view digits, int base);
double to_double(const JinjaValue& number);  // Error where an integer is too large

}  // namespace quern
