#include "server/fields.h"

#include <fmt/core.h>

#include <cmath>

namespace quern {

std::string describe(const Json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  std::string text = write_json(value, {.ensure_ascii = true});
  if (text.size() > 60) return fmt::format("a {} of {} bytes", kind_name(value.kind()), text.size());
  return text;
}

void bad_field(const std::string& path, const std::string& expected, const Json& found) {
  throw ApiError(400, fmt::format("{}: expected {}, found {}", path, expected, describe(found)), path);
}

void bad_request(const std::string& path, const std::string& message) {
  throw ApiError(400, path.empty() ? message : path + ": " + message, path);
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {
  if (!object.is_object()) bad_field(path_.empty() ? "body" : path_, "an object", object);
}

std::string Fields::path_of(std::string_view name) const {
  return path_.empty() ? std::string(name) : path_ + "." + std::string(name);
}

const Json* Fields::get(std::string_view name) {
  known_.emplace(name);
  const Json* value = object_.find(name);
  return value && !value->is_null() ? value : nullptr;
}

std::optional<double> Fields::number(std::string_view name, double min, double max) {
  const Json* value = get(name);
  if (!value) return std::nullopt;
  const double number = value->is_number() ? value->as_double() : std::nan("");
  if (!(number >= min && number <= max))
    bad_field(path_of(name), fmt::format("a number from {} to {}", min, max), *value);
  return number;
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t min, int64_t max) {
  const Json* value = get(name);
  if (!value) return std::nullopt;
  std::optional<int64_t> number;
  if (value->is_int())
    number = value->as_int();
  else if (value->is_float() && std::trunc(value->as_double()) == value->as_double() &&
           std::abs(value->as_double()) < 9e15)
    number = static_cast<int64_t>(value->as_double());
  if (!number || *number < min || *number > max)
    bad_field(path_of(name),
              max == std::numeric_limits<int64_t>::max() ? fmt::format("an integer of at least {}", min)
                                                         : fmt::format("an integer from {} to {}", min, max),
              *value);
  return number;
}

std::optional<bool> Fields::boolean(std::string_view name) {
  const Json* value = get(name);
  if (!value) return std::nullopt;
  if (!value->is_bool()) bad_field(path_of(name), "true or false", *value);
  return value->as_bool();
}

const std::string* Fields::text(std::string_view name) {
  const Json* value = get(name);
  if (!value) return nullptr;
  if (!value->is_string()) bad_field(path_of(name), "a string", *value);
  return &value->as_string();
}

const std::string& Fields::required_text(std::string_view name) {
  const std::string* value = text(name);
  if (!value) bad_request(path_of(name), "is missing");
  return *value;
}

const Json* Fields::array(std::string_view name) {
  const Json* value = get(name);
  if (value && !value->is_array()) bad_field(path_of(name), "an array", *value);
  return value;
}

const Json* Fields::object(std::string_view name) {
  const Json* value = get(name);
  if (value && !value->is_object()) bad_field(path_of(name), "an object", *value);
  return value;
}

const std::string* Fields::choice(std::string_view name, std::initializer_list<std::string_view> values) {
  const Json* value = get(name);
  if (!value) return nullptr;
  if (value->is_string())
    for (std::string_view v : values)
      if (value->as_string() == v) return &value->as_string();
  std::string list;
  for (std::string_view v : values) list += (list.empty() ? "" : ", ") + std::string(v);
  bad_field(path_of(name), "one of " + list, *value);
}

void Fields::ignore(std::initializer_list<std::string_view> names) {
  for (std::string_view name : names) known_.emplace(name);
}

void Fields::refuse(std::string_view name, const std::string& why) {
  if (get(name)) bad_request(path_of(name), why);
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> names;
  for (const auto& [name, value] : object_.as_object())
    if (!known_.count(name)) names.push_back(path_of(name));
  return names;
}

}  // namespace quern
