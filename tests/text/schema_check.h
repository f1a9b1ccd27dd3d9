// An independent, naive check of a value against a JSON schema: the specification's sentences, one after the
// other.
#pragma once

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/json.h"
#include "base/utf8.h"

namespace quern::test {

inline bool pattern_matches(const std::string& pattern, const std::string& text) {
  int error;
  PCRE2_SIZE at;
  auto* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                             PCRE2_UTF | PCRE2_DOLLAR_ENDONLY, &error, &at, nullptr);
  if (!code) return false;
  auto* match = pcre2_match_data_create_from_pattern(code, nullptr);
  const int n =
      pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, match, nullptr);
  pcre2_match_data_free(match);
  pcre2_code_free(code);
  return n > 0;
}

inline bool is_type(const Json& v, const std::string& type) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (type == "number") return v.is_number();
  if (type == "integer")
    return v.is_integer() || (v.is_float() && std::floor(v.as_double()) == v.as_double());
  return false;
}

inline int length(const std::string& text) {
  int n = 0;
  for (size_t i = 0; i < text.size(); ++n) i += decode_utf8(text, i).size;
  return n;
}

inline bool same_value(const Json& a, const Json& b) {
  return a == b || (a.is_number() && b.is_number() && a.as_double() == b.as_double());
}

inline bool fits(const Json& root, const Json& schema, const Json& v) {
  if (schema.is_bool()) return schema.as_bool();
  for (const auto& [key, k] : schema.as_object()) {
    auto each = [&](auto test) { return std::count_if(k.as_array().begin(), k.as_array().end(), test); };
    auto part = [&](const Json& s) { return fits(root, s, v); };
    if (key == "type") {
      if (k.is_string() ? !is_type(v, k.as_string())
                        : !each([&](const Json& t) { return is_type(v, t.as_string()); }))
        return false;
    } else if (key == "enum") {
      if (!each([&](const Json& e) { return same_value(e, v); })) return false;
    } else if (key == "const") {
      if (!same_value(k, v)) return false;
    } else if (key == "anyOf") {
      if (!each(part)) return false;
    } else if (key == "oneOf") {
      if (each(part) != 1) return false;
    } else if (key == "allOf") {
      if (static_cast<size_t>(each(part)) != k.size()) return false;
    } else if (key == "$ref") {
      const Json* at = &root;
      std::string ref = k.as_string().substr(1);
      while (!ref.empty()) {
        const size_t end = std::min(ref.find('/', 1), ref.size());
        at = at->find(ref.substr(1, end - 1));
        ref.erase(0, end);
      }
      if (!fits(root, *at, v)) return false;
    } else if (v.is_string()) {
      if (key == "minLength" && length(v.as_string()) < k.as_int()) return false;
      if (key == "maxLength" && length(v.as_string()) > k.as_int()) return false;
      if (key == "pattern" && !pattern_matches(k.as_string(), v.as_string())) return false;
    } else if (v.is_number()) {
      if (key == "minimum" && v.as_double() < k.as_double()) return false;
      if (key == "maximum" && v.as_double() > k.as_double()) return false;
      if (key == "exclusiveMinimum" && v.as_double() <= k.as_double()) return false;
      if (key == "exclusiveMaximum" && v.as_double() >= k.as_double()) return false;
    } else if (v.is_array()) {
      const size_t n_prefix = schema.find("prefixItems") ? schema.find("prefixItems")->size() : 0;
      if (key == "minItems" && static_cast<int64_t>(v.size()) < k.as_int()) return false;
      if (key == "maxItems" && static_cast<int64_t>(v.size()) > k.as_int()) return false;
      for (size_t i = 0; i < v.size(); ++i) {
        if (key == "items" && i >= n_prefix && !fits(root, k, v.as_array()[i])) return false;
        if (key == "prefixItems" && i < n_prefix && !fits(root, k.as_array()[i], v.as_array()[i]))
          return false;
      }
    } else if (v.is_object()) {
      if (key == "required" &&
          static_cast<size_t>(each([&](const Json& n) { return v.find(n.as_string()); })) != k.size())
        return false;
      if (key == "properties")
        for (const auto& [name, s] : k.as_object())
          if (const Json* m = v.find(name); m && !fits(root, s, *m)) return false;
      if (key == "additionalProperties")
        for (const auto& [name, m] : v.as_object())
          if (!(schema.find("properties") && schema.find("properties")->find(name)) && !fits(root, k, m))
            return false;
    }
  }
  return true;
}

}  // namespace quern::test
