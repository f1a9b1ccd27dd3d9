// One JSON object of a config file and the checked reading of its members: every error names the file, the key, what was
// expected and what was found.
#pragma once

#include <fmt/core.h>

#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/json.h"

namespace quern {

inline constexpr int64_t kMaxDim =
    1 << 24;  // of any width or count, so that products of two fit int64 easily

struct Section {
  const Json& json;
  std::string file;
  std::string prefix;  // "" or "text_config."

  [[noreturn]] void fail(std::string_view key, std::string_view expected, const std::string& found) const {
    throw Error(fmt::format("{}: {}{}: expected {}, found {}", file, prefix, key, expected, found));
  }
  [[noreturn]] void fail(std::string_view key, std::string_view expected, const Json& found) const {
    fail(key, expected, write_json(found));
  }
  // The member, or null where it is absent or null.
  const Json* get(std::string_view key) const {
    const Json* v = json.find(key);
    return v == nullptr || v->is_null() ? nullptr : v;
  }
  Section child(std::string_view key) const { return {*get(key), file, fmt::format("{}{}.", prefix, key)}; }

  std::optional<int64_t> integer_if(std::string_view key, int64_t low, int64_t high) const {
    const Json* v = get(key);
    if (v == nullptr) return {};
    if (!v->is_int() || v->as_int() < low || v->as_int() > high)
      fail(key, fmt::format("an integer from {} to {}", low, high), *v);
    return v->as_int();
  }
  int64_t integer(std::string_view key, int64_t low = 1, int64_t high = kMaxDim) const {
    const auto v = integer_if(key, low, high);
    if (!v) fail(key, "an integer", std::string("nothing"));
    return *v;
  }
  int dim(std::string_view key) const { return static_cast<int>(integer(key)); }
  int dim(std::string_view key, int otherwise) const {
    return static_cast<int>(integer_if(key, 1, kMaxDim).value_or(otherwise));
  }
  std::optional<double> positive_if(std::string_view key) const {
    const Json* v = get(key);
    if (v == nullptr) return {};
    if (!v->is_number() || !(v->as_double() > 0) || !std::isfinite(v->as_double()))
      fail(key, "a positive number", *v);
    return v->as_double();
  }
  std::optional<bool> flag_if(std::string_view key) const {
    const Json* v = get(key);
    if (v == nullptr) return {};
    if (!v->is_bool()) fail(key, "true or false", *v);
    return v->as_bool();
  }
  std::optional<std::string> text_if(std::string_view key) const {
    const Json* v = get(key);
    if (v == nullptr) return {};
    if (!v->is_string()) fail(key, "a string", *v);
    return v->as_string();
  }
  // A flag of which we do only one value.
  void only(std::string_view key, bool supported) const {
    const auto v = flag_if(key);
    if (v && *v != supported) fail(key, supported ? "true" : "false", *get(key));
  }
  std::optional<int32_t> id_if(std::string_view key, int64_t vocab) const {
    const auto v = integer_if(key, 0, vocab - 1);
    if (!v) return {};
    return static_cast<int32_t>(*v);
  }
};

// A value that may sit in either of two places; both must agree.
template <typename T>
std::optional<T> agreed(std::string_view key, const Section& a, std::optional<T> x, const Section* b,
                        std::optional<T> y) {
  if (x && y && *x != *y)
    a.fail(key, fmt::format("{} as in {}{}", *y, b->prefix, key), write_json(*a.get(key)));
  return x ? x : y;
}

}  // namespace quern
