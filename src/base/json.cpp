#include "base/json.h"

#include <fmt/core.h>

#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <boost/json/src.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>
#include <unordered_map>

#include "base/check.h"
#include "base/utf8.h"

namespace quern {
namespace {

[[noreturn]] void wrong_kind(std::string_view expected, const Json& found) {
  throw Error(fmt::format("JSON: expected {}, found {}", expected, kind_name(found.kind())));
}

// Receives the parser's events and builds the value on an explicit stack.
struct Builder {
  static constexpr std::size_t max_object_size = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t max_array_size = max_object_size;
  static constexpr std::size_t max_key_size = max_object_size;
  static constexpr std::size_t max_string_size = max_object_size;
  using error_code = boost::json::error_code;
  using view = boost::json::string_view;

  struct Level {
    Json value;
    std::string key;
    std::unordered_map<std::string, size_t> index;  // filled once an object has more than kLinear members
  };
  static constexpr size_t kLinear = 16;

  std::vector<Level> stack;
  Json root;
  std::string text;  // the string, key or number being collected
  bool unique_keys = false;
  std::string duplicate;

  bool add(Json v) {
    if (stack.empty()) {
      root = std::move(v);
      return true;
    }
    Level& top = stack.back();
    if (top.value.is_array()) {
      top.value.as_array().push_back(std::move(v));
      return true;
    }
    auto& members = top.value.as_object();
    size_t at = members.size();
    if (members.size() < kLinear) {
      for (size_t i = 0; i < members.size(); ++i)
        if (members[i].first == top.key) at = i;
    } else {
      if (top.index.empty())
        for (size_t i = 0; i < members.size(); ++i) top.index.emplace(members[i].first, i);
      at = top.index.try_emplace(top.key, members.size()).first->second;
    }
    if (at < members.size()) {
      if (unique_keys) {
        duplicate = top.key;
        return false;
      }
      members[at].second = std::move(v);
    } else {
      members.emplace_back(std::move(top.key), std::move(v));
    }
    return true;
  }
  bool add(Json v, error_code& ec) {
    if (add(std::move(v))) return true;
    ec = boost::json::error::syntax;
    return false;
  }

  bool on_document_begin(error_code&) { return true; }
  bool on_document_end(error_code&) { return true; }
  bool on_object_begin(error_code&) {
    stack.push_back({Json(Json::Object{}), {}, {}});
    return true;
  }
  bool on_array_begin(error_code&) {
    stack.push_back({Json(Json::Array{}), {}, {}});
    return true;
  }
  bool close(error_code& ec) {
    Json v = std::move(stack.back().value);
    stack.pop_back();
    return add(std::move(v), ec);
  }
  bool on_object_end(std::size_t, error_code& ec) { return close(ec); }
  bool on_array_end(std::size_t, error_code& ec) { return close(ec); }
  bool part(view s) {
    text.append(s.data(), s.size());
    return true;
  }
  bool on_key_part(view s, std::size_t, error_code&) { return part(s); }
  bool on_key(view s, std::size_t, error_code&) {
    part(s);
    stack.back().key = std::move(text);
    text.clear();
    return true;
  }
  bool on_string_part(view s, std::size_t, error_code&) { return part(s); }
  bool on_string(view s, std::size_t, error_code& ec) {
    part(s);
    Json v(std::move(text));
    text.clear();
    return add(std::move(v), ec);
  }
  bool on_number_part(view s, error_code&) { return part(s); }
  bool on_int64(std::int64_t, view s, error_code& ec) { return number(s, ec); }
  bool on_uint64(std::uint64_t, view s, error_code& ec) { return number(s, ec); }
  bool on_double(double, view s, error_code& ec) { return number(s, ec); }
  // From the digits as written: Boost's own double may be off by one in the last place.
  bool number(view s, error_code& ec) {
    part(s);
    const std::string digits = std::move(text);
    text.clear();
    if (digits.find_first_of(".eE") == std::string::npos) {
      int64_t i = 0;
      const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), i);
      if (r.ec == std::errc()) return add(Json(i), ec);
      return add(Json::big_int(digits), ec);
    }
    double d = 0;
    const auto r = std::from_chars(digits.data(), digits.data() + digits.size(), d);
    if (r.ec == std::errc::result_out_of_range) {
      // Too small is 0, too large is infinite, which JSON has no word for: refuse it.
      const auto e = digits.find_first_of("eE");
      const bool tiny = e != std::string::npos && digits[e + 1] == '-';
      if (!tiny) {
        ec = boost::json::error::exponent_overflow;
        return false;
      }
      d = digits[0] == '-' ? -0.0 : 0.0;
    }
    return add(Json(d), ec);
  }
  bool on_bool(bool b, error_code& ec) { return add(Json(b), ec); }
  bool on_null(error_code& ec) { return add(Json(), ec); }
  bool on_comment_part(view, error_code&) { return true; }
  bool on_comment(view, error_code&) { return true; }
};

void write(std::string& out, const Json& v, const JsonStyle& style, int depth) {
  auto new_line = [&](int d) {
    if (style.indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(style.indent) * d, ' ');
  };
  // Python drops the space after the item separator when it breaks the line.
  std::string_view separator = style.item_separator;
  if (style.indent >= 0)
    while (!separator.empty() && separator.back() == ' ') separator.remove_suffix(1);
  switch (v.kind()) {
    case Json::Kind::Null:
      out += "null";
      break;
    case Json::Kind::Bool:
      out += v.as_bool() ? "true" : "false";
      break;
    case Json::Kind::Int:
      out += std::to_string(v.as_int());
      break;
    case Json::Kind::BigInt:
      out += v.big_digits();
      break;
    case Json::Kind::Float: {
      const double d = v.as_double();
      out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d < 0 ? "-Infinity" : "Infinity") : python_float(d);
      break;
    }
    case Json::Kind::String:
      append_json_string(out, v.as_string(), style.ensure_ascii);
      break;
    case Json::Kind::Array: {
      out += '[';
      bool first = true;
      for (const Json& item : v.as_array()) {
        if (!first) out += separator;
        first = false;
        new_line(depth + 1);
        write(out, item, style, depth + 1);
      }
      if (!first) new_line(depth);
      out += ']';
      break;
    }
    case Json::Kind::Object: {
      std::vector<const Json::Member*> members;
      members.reserve(v.size());
      for (const auto& m : v.as_object()) members.push_back(&m);
      if (style.sort_keys)
        std::sort(members.begin(), members.end(), [](auto* a, auto* b) { return a->first < b->first; });
      out += '{';
      bool first = true;
      for (const auto* m : members) {
        if (!first) out += separator;
        first = false;
        new_line(depth + 1);
        append_json_string(out, m->first, style.ensure_ascii);
        out += style.key_separator;
        write(out, m->second, style, depth + 1);
      }
      if (!first) new_line(depth);
      out += '}';
      break;
    }
  }
}

}  // namespace

Json Json::big_int(std::string digits) {
  Json v;
  v.kind_ = Kind::BigInt;
  v.text_ = std::move(digits);
  return v;
}

std::string_view kind_name(Json::Kind kind) {
  constexpr std::string_view names[] = {"null",   "boolean", "integer", "integer",
                                        "number", "string",  "array",   "object"};
  return names[static_cast<int>(kind)];
}

bool Json::as_bool() const {
  if (kind_ != Kind::Bool) wrong_kind("boolean", *this);
  return int_ != 0;
}
int64_t Json::as_int() const {
  if (kind_ == Kind::BigInt) throw Error("JSON: integer " + text_ + " is outside 64 bits");
  if (kind_ != Kind::Int) wrong_kind("integer", *this);
  return int_;
}
double Json::as_double() const {
  if (kind_ == Kind::Float) return float_;
  if (kind_ == Kind::Int) return static_cast<double>(int_);
  if (kind_ == Kind::BigInt) {
    double d = 0;
    const auto r = std::from_chars(text_.data(), text_.data() + text_.size(), d);
    if (r.ec == std::errc::result_out_of_range) return text_[0] == '-' ? -INFINITY : INFINITY;
    return d;
  }
  wrong_kind("number", *this);
}
const std::string& Json::as_string() const {
  if (kind_ != Kind::String) wrong_kind("string", *this);
  return text_;
}
const Json::Array& Json::as_array() const {
  if (kind_ != Kind::Array) wrong_kind("array", *this);
  return array_;
}
Json::Array& Json::as_array() {
  if (kind_ != Kind::Array) wrong_kind("array", *this);
  return array_;
}
const Json::Object& Json::as_object() const {
  if (kind_ != Kind::Object) wrong_kind("object", *this);
  return object_;
}
Json::Object& Json::as_object() {
  if (kind_ != Kind::Object) wrong_kind("object", *this);
  return object_;
}

const Json* Json::find(std::string_view key) const {
  if (kind_ != Kind::Object) return nullptr;
  for (const auto& [k, v] : object_)
    if (k == key) return &v;
  return nullptr;
}

void Json::set(std::string_view key, Json value) {
  if (kind_ == Kind::Null) kind_ = Kind::Object;
  for (auto& [k, v] : as_object())
    if (k == key) {
      v = std::move(value);
      return;
    }
  object_.emplace_back(std::string(key), std::move(value));
}

void Json::push_back(Json value) {
  if (kind_ == Kind::Null) kind_ = Kind::Array;
  as_array().push_back(std::move(value));
}

size_t Json::size() const { return kind_ == Kind::Array ? array_.size() : object_.size(); }

bool Json::operator==(const Json& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::Null:
      return true;
    case Kind::Bool:
    case Kind::Int:
      return int_ == other.int_;
    case Kind::Float:
      return float_ == other.float_;
    case Kind::BigInt:
    case Kind::String:
      return text_ == other.text_;
    case Kind::Array:
      return array_ == other.array_;
    case Kind::Object:
      break;
  }
  if (object_.size() != other.object_.size()) return false;
  for (const auto& [k, v] : object_) {
    const Json* o = other.find(k);
    if (!o || !(*o == v)) return false;
  }
  return true;
}

Json parse_json(std::string_view text, const JsonLimits& limits) {
  boost::json::parse_options options;
  options.max_depth = static_cast<std::size_t>(limits.max_depth);
  boost::json::basic_parser<Builder> parser(options);
  parser.handler().unique_keys = limits.unique_keys;
  boost::json::error_code ec;
  const std::size_t used = parser.write_some(false, text.data(), text.size(), ec);
  if (!parser.handler().duplicate.empty())
    throw Error(fmt::format("JSON: duplicate key '{}' at byte {}", parser.handler().duplicate, used));
  if (ec) throw Error(fmt::format("JSON: {} at byte {}", ec.message(), used));
  if (used < text.size()) throw Error(fmt::format("JSON: text after the value at byte {}", used));
  return std::move(parser.handler().root);
}

std::string write_json(const Json& value, const JsonStyle& style) {
  std::string out;
  write(out, value, style, 0);
  return out;
}

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      ++i;
      switch (c) {
        case '"':
          out += "\\\"";
          break;
        case '\\':
          out += "\\\\";
          break;
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        case '\b':
          out += "\\b";
          break;
        case '\f':
          out += "\\f";
          break;
        default:
          if (c < 0x20 || (ensure_ascii && c == 0x7f))
            out += fmt::format("\\u{:04x}", c);
          else
            out += static_cast<char>(c);
      }
      continue;
    }
    const Utf8Char ch = decode_utf8(text, i);
    const char32_t cp = ch.valid ? ch.code_point : U'\ufffd';
    if (!ensure_ascii) {
      append_utf8(out, cp);
    } else if (cp < 0x10000) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(cp));
    } else {
      const uint32_t v = static_cast<uint32_t>(cp) - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (v >> 10), 0xdc00 + (v & 0x3ff));
    }
    i += ch.size;
  }
  out += '"';
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  // Scientific form gives the shortest digits and the exponent; Python chooses its layout from the exponent.
  const auto r = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific);
  std::string_view s(buffer, r.ptr - buffer);
  std::string out;
  if (s[0] == '-') {
    out = "-";
    s.remove_prefix(1);
  }
  const size_t e = s.find('e');
  int exponent = 0;
  const char* digits_end = s.data() + s.size();
  const char* from = s.data() + e + 1 + (s[e + 1] == '+');
  std::from_chars(from, digits_end, exponent);
  std::string digits(1, s[0]);
  if (e > 2) digits += s.substr(2, e - 2);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(-exponent - 1, '0') + digits;
  if (digits.size() <= static_cast<size_t>(exponent) + 1)
    return out + digits + std::string(exponent + 1 - digits.size(), '0') + ".0";
  return out + digits.substr(0, exponent + 1) + "." + digits.substr(exponent + 1);
}

}  // namespace quern
