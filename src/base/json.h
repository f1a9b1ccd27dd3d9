// JSON values, parsing (RFC 8259, UTF-8 strict) and writing.
//
// A Json keeps what Python's json keeps, because chat templates print values the way Python does: key order,
// the difference between 1 and 1.0, and integers of any size (beyond int64 as their digits). A duplicate key
// keeps the first one's place and the last one's value. The grammar is Boost.JSON's incremental parser; the
// value type is ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quern {

class Json {
 public:
  enum class Kind : uint8_t { Null, Bool, Int, BigInt, Float, String, Array, Object };
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;  // in file order; keys are unique

  Json() = default;
  Json(std::nullptr_t) {}
  Json(bool b) : kind_(Kind::Bool), int_(b) {}
  Json(int v) : kind_(Kind::Int), int_(v) {}
  Json(int64_t v) : kind_(Kind::Int), int_(v) {}
  Json(double v) : kind_(Kind::Float), float_(v) {}
  Json(const char* s) : kind_(Kind::String), text_(s) {}
  Json(std::string_view s) : kind_(Kind::String), text_(s) {}
  Json(std::string s) : kind_(Kind::String), text_(std::move(s)) {}
  Json(Array a) : kind_(Kind::Array), array_(std::move(a)) {}
  Json(Object o) : kind_(Kind::Object), object_(std::move(o)) {}
  // An integer outside int64, as its decimal digits ("-" allowed in front).
  static Json big_int(std::string digits);

  Kind kind() const { return kind_; }
  bool is_null() const { return kind_ == Kind::Null; }
  bool is_bool() const { return kind_ == Kind::Bool; }
  bool is_int() const { return kind_ == Kind::Int; }  // fits int64
  bool is_integer() const { return kind_ == Kind::Int || kind_ == Kind::BigInt; }
  bool is_float() const { return kind_ == Kind::Float; }
  bool is_number() const { return is_integer() || is_float(); }
  bool is_string() const { return kind_ == Kind::String; }
  bool is_array() const { return kind_ == Kind::Array; }
  bool is_object() const { return kind_ == Kind::Object; }

  // Each throws Error("expected …, found …") when the kind differs; callers that know a better name check
  // first.
  bool as_bool() const;
  int64_t as_int() const;
  double as_double() const;  // any number
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;
  Array& as_array();
  Object& as_object();
  const std::string& big_digits() const { return text_; }  // of a BigInt

  // The member, or null where this is no object or has none. Linear: iterate large objects instead.
  const Json* find(std::string_view key) const;
  // Adds or replaces a member; a Null becomes an object first.
  void set(std::string_view key, Json value);
  void push_back(Json value);
  size_t size() const;  // of an array or object, else 0

  bool operator==(
      const Json& other) const;  // numbers: same kind and value; objects: same members in any order

 private:
  Kind kind_ = Kind::Null;
  int64_t int_ = 0;
  double float_ = 0;
  std::string text_;
  Array array_;
  Object object_;
};

std::string_view kind_name(
    Json::Kind kind);  // "null", "boolean", "integer", "number", "string", "array", "object"

struct JsonLimits {
  int max_depth = 256;
  bool unique_keys = false;  // a duplicate key is an error
};

// Throws Error("JSON: <what> at byte N"). Memory stays proportional to the text.
Json parse_json(std::string_view text, const JsonLimits& limits = {});

struct JsonStyle {
  std::string_view item_separator = ",";
  std::string_view key_separator = ":";
  int indent = -1;            // ≥ 0: Python's indent, one item a line
  bool ensure_ascii = false;  // \uXXXX for everything beyond ASCII
  bool sort_keys = false;
};
inline constexpr JsonStyle kPythonJson{", ", ": "};  // json.dumps(…, ensure_ascii=False)

std::string write_json(const Json& value, const JsonStyle& style = {});
// Appends `text` as a quoted JSON string. `text` must be valid UTF-8; bytes that are not become U+FFFD.
void append_json_string(std::string& out, std::string_view text, bool ensure_ascii = false);
// A double as Python's repr prints it: shortest digits that read back, "1.0", "1e+16", "1e-05", "nan", "inf".
std::string python_float(double value);

}  // namespace quern
