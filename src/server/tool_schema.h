// What a tool's parameter schema says of a value written as text, and the value as JSON.
//
//   string only          the text as it is, also where it looks like a number
//   known types          a literal of one of them: integers and numbers keep their digits (beyond 2^53 too), objects and
//                        arrays their text; True/False/None count for a boolean or null
//   no or open schema    any valid JSON literal
//   anything else        a JSON string
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/json.h"

namespace quern {

// A set of JSON types.
using JsonTypes = uint8_t;
inline constexpr JsonTypes kStringType = 1, kIntegerType = 2, kNumberType = 4, kBooleanType = 8,
                           kNullType = 16, kArrayType = 32, kObjectType = 64, kAnyType = 127;

class ToolSchemas {
 public:
  ToolSchemas() = default;
  // OpenAI's array of tools ({"type": "function", "function": {"name", "parameters"}} or the inner object alone).
  // What is no function with a name is passed over.
  explicit ToolSchemas(const Json& tools);

  bool empty() const { return tools_.empty(); }
  bool has(std::string_view tool) const { return tools_.find(tool) != tools_.end(); }
  // The types that a parameter may have; kAnyType where the schema does not say.
  JsonTypes types(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, JsonTypes, std::less<>>, std::less<>> tools_;
};

// The types that `schema` admits: type, anyOf, oneOf, allOf, enum, const, nullable and local $ref into `root`.
JsonTypes schema_types(const Json& schema, const Json& root);

// `text`, complete, as one JSON value of one of the types if it fits, else as a JSON string.
std::string argument_json(std::string_view text, JsonTypes types);

}  // namespace quern
