#include "server/tool_schema.h"

#include <algorithm>

#include "base/check.h"
#include "base/json_repair.h"

namespace quern {

namespace {

JsonTypes type_named(std::string_view name) {
  if (name == "string") return kStringType;
  if (name == "integer") return kIntegerType;
  if (name == "number") return kNumberType | kIntegerType;
  if (name == "boolean") return kBooleanType;
  if (name == "null") return kNullType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return kAnyType;
}

JsonTypes type_of(const Json& value) {
  switch (value.kind()) {
    case Json::Kind::Null:
      return kNullType;
    case Json::Kind::Bool:
      return kBooleanType;
    case Json::Kind::Int:
    case Json::Kind::BigInt:
      return kIntegerType;
    case Json::Kind::Float:
      return kNumberType;
    case Json::Kind::String:
      return kStringType;
    case Json::Kind::Array:
      return kArrayType;
    case Json::Kind::Object:
      return kObjectType;
  }
  return kAnyType;
}

// "#/a/b" inside `root`, or null.
const Json* resolve(std::string_view reference, const Json& root) {
  if (!reference.starts_with("#/")) return nullptr;
  reference.remove_prefix(2);
  const Json* at = &root;
  while (at != nullptr && !reference.empty()) {
    const size_t slash = std::min(reference.find('/'), reference.size());
    at = at->find(reference.substr(0, slash));
    reference.remove_prefix(std::min(slash + 1, reference.size()));
  }
  return at;
}

JsonTypes types_at(const Json& schema, const Json& root, int depth) {
  if (!schema.is_object() || depth > 16) return kAnyType;
  JsonTypes types = kAnyType;
  if (const Json* reference = schema.find("$ref"); reference != nullptr && reference->is_string()) {
    const Json* target = resolve(reference->as_string(), root);
    if (target != nullptr) types &= types_at(*target, root, depth + 1);
  }
  if (const Json* type = schema.find("type")) {
    if (type->is_string()) {
      types &= type_named(type->as_string());
    } else if (type->is_array()) {
      JsonTypes any = 0;
      for (const Json& one : type->as_array())
        any |= one.is_string() ? type_named(one.as_string()) : kAnyType;
      types &= any;
    }
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* choices = schema.find(key);
    if (choices == nullptr || !choices->is_array() || choices->size() == 0) continue;
    JsonTypes any = 0;
    for (const Json& choice : choices->as_array()) any |= types_at(choice, root, depth + 1);
    types &= any;
  }
  if (const Json* all = schema.find("allOf"); all != nullptr && all->is_array()) {
    for (const Json& part : all->as_array()) types &= types_at(part, root, depth + 1);
  }
  if (const Json* values = schema.find("enum");
      values != nullptr && values->is_array() && values->size() > 0) {
    JsonTypes any = 0;
    for (const Json& value : values->as_array()) any |= type_of(value);
    types &= any;
  }
  if (const Json* value = schema.find("const")) types &= type_of(*value);
  if (const Json* nullable = schema.find("nullable");
      nullable != nullptr && nullable->is_bool() && nullable->as_bool()) {
    types |= kNullType;
  }
  return types == 0 ? kAnyType : types;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

JsonTypes schema_types(const Json& schema, const Json& root) { return types_at(schema, root, 0); }

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools.as_array()) {
    const Json* function = tool.find("function");
    if (function == nullptr) function = &tool;
    const Json* name = function->find("name");
    if (name == nullptr || !name->is_string()) continue;
    auto& parameters = tools_[name->as_string()];
    const Json* schema = function->find("parameters");
    if (schema == nullptr) schema = function->find("input_schema");
    if (schema == nullptr) continue;
    const Json* properties = schema->find("properties");
    if (properties == nullptr || !properties->is_object()) continue;
    for (const auto& [key, value] : properties->as_object()) parameters[key] = schema_types(value, *schema);
  }
}

JsonTypes ToolSchemas::types(std::string_view tool, std::string_view parameter) const {
  const auto at = tools_.find(tool);
  if (at == tools_.end()) return kAnyType;
  const auto found = at->second.find(parameter);
  return found == at->second.end() ? kAnyType : found->second;
}

std::string argument_json(std::string_view text, JsonTypes types) {
  const auto as_string = [&] {
    std::string quoted;
    append_json_string(quoted, text);
    return quoted;
  };
  if (types == kStringType) return as_string();
  std::string literal(trimmed(text));
  repair_surrogates(literal);
  if (types != kAnyType) {
    if ((types & kBooleanType) != 0 && (literal == "True" || literal == "False")) {
      return literal == "True" ? "true" : "false";
    }
    if ((types & kNullType) != 0 && literal == "None") return "null";
  }
  try {
    if (!literal.empty() && (types & type_of(parse_json(literal))) != 0) return literal;
  } catch (const Error&) {  // not JSON, so a string
  }
  return as_string();
}

}  // namespace quern
