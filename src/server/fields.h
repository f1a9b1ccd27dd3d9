// Typed reading of a request's JSON object. Every fault is an ApiError 400 that names the field by its path, what
// was expected and what was found. A field that is null counts as absent. Fields nobody asked for are listed, so
// that they can be logged.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace quern {

// A value as an error message shows it: its kind, and the value where it is short.
std::string describe(const Json& value);
[[noreturn]] void bad_field(const std::string& path, const std::string& expected, const Json& found);
[[noreturn]] void bad_request(const std::string& path, const std::string& message);

class Fields {
 public:
  // `path` is the object's own: "" for the body, "messages[2]" …
  Fields(const Json& object, std::string path);

  std::string path_of(std::string_view name) const;
  const Json* get(std::string_view name);  // null where absent
  std::optional<double> number(std::string_view name, double min, double max);
  // A number without a fraction, however it is written.
  std::optional<int64_t> integer(std::string_view name, int64_t min,
                                 int64_t max = std::numeric_limits<int64_t>::max());
  std::optional<bool> boolean(std::string_view name);
  const std::string* text(std::string_view name);
  const std::string& required_text(std::string_view name);
  const Json* array(std::string_view name);
  const Json* object(std::string_view name);
  // One of the listed values.
  const std::string* choice(std::string_view name, std::initializer_list<std::string_view> values);

  void ignore(std::initializer_list<std::string_view> names);  // known and harmless
  void refuse(std::string_view name, const std::string& why);  // known and not supported: 400 where present
  std::vector<std::string> unknown() const;

 private:
  const Json& object_;
  std::string path_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace quern
