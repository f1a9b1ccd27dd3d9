#include "text/grammar_schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "base/check.h"

namespace quern {
namespace {

constexpr int kMaxDepth = 32;        // of references and allOf inside each other
constexpr size_t kMaxBranches = 64;  // of two anyOf multiplied

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(fmt::format("JSON schema: {}: {}", path, what));
}

const Json::Object& object(const Json& v, const std::string& path) {
  if (!v.is_object()) fail(path, fmt::format("expected a schema, found {}", kind_name(v.kind())));
  return v.as_object();
}

std::vector<std::string> types_of(const Json& schema) {
  const Json* t = schema.find("type");
  std::vector<std::string> out;
  if (t && t->is_string()) out.push_back(t->as_string());
  if (t && t->is_array())
    for (const Json& x : t->as_array())
      if (x.is_string()) out.push_back(x.as_string());
  return out;
}

std::string type_of_value(const Json& v) {
  if (v.is_integer()) return "integer";
  return std::string(kind_name(v.kind()));
}

// The types that both lists allow.
std::vector<std::string> common_types(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> out;
  auto has = [](const auto& list, std::string_view t) {
    return std::find(list.begin(), list.end(), t) != list.end();
  };
  for (const auto& t : {"null", "boolean", "string", "array", "object", "number"})
    if (has(a, t) && has(b, t)) out.emplace_back(t);
  if (!has(out, "number") && (has(a, "integer") || has(a, "number")) &&
      (has(b, "integer") || has(b, "number")))
    out.emplace_back("integer");
  return out;
}

Json all_of(const Json& a, const Json& b) {
  if (a.is_bool()) return a.as_bool() ? b : a;
  if (b.is_bool()) return b.as_bool() ? a : b;
  if (a == b) return a;
  Json both;
  both.set("allOf", Json(Json::Array{a, b}));
  return both;
}

// `closed` forbids or constrains the members it does not list.
void apply_additional(const Json& closed, Json& properties) {
  const Json* additional = closed.find("additionalProperties");
  if (!additional || (additional->is_bool() && additional->as_bool())) return;
  const Json* own = closed.find("properties");
  for (auto& [name, schema] : properties.as_object())
    if (!own || !own->find(name)) schema = all_of(schema, *additional);
}

bool is_greater(const Json& a, const Json& b) {
  if (a.is_int() && b.is_int()) return a.as_int() > b.as_int();
  return a.as_double() > b.as_double();
}

bool overlap(const Json& a, const Json& b) {  // of two lists of values
  for (const Json& x : a.as_array())
    for (const Json& y : b.as_array())
      if (x == y || (x.is_number() && y.is_number() && x.as_double() == y.as_double())) return true;
  return false;
}

const Json& follow(const Json& root, const Json& schema) {
  const Json* s = &schema;
  for (int i = 0; i < kMaxDepth; ++i) {
    const Json* ref = s->find("$ref");
    if (!ref || !ref->is_string()) break;
    s = &resolve_schema_ref(root, ref->as_string(), "$ref");
  }
  return *s;
}

bool requires_member(const Json& schema, std::string_view name) {
  const Json* required = schema.find("required");
  if (!required || !required->is_array()) return false;
  for (const Json& r : required->as_array())
    if (r.is_string() && r.as_string() == name) return true;
  return false;
}

bool forbids_member(const Json& schema, std::string_view name) {
  const Json* additional = schema.find("additionalProperties");
  const Json* properties = schema.find("properties");
  return additional && additional->is_bool() && !additional->as_bool() &&
         !(properties && properties->find(name));
}

}  // namespace

bool is_schema_annotation(std::string_view keyword) {
  static constexpr std::string_view names[] = {
      "title",       "description",   "default",          "examples",       "example",    "$schema",
      "$id",         "$comment",      "readOnly",         "writeOnly",      "deprecated", "$defs",
      "definitions", "discriminator", "contentMediaType", "contentEncoding"};
  return keyword.starts_with("x-") ||
         std::find(std::begin(names), std::end(names), keyword) != std::end(names);
}

const Json& resolve_schema_ref(const Json& root, const std::string& ref, const std::string& path) {
  if (!ref.starts_with('#'))
    fail(path, fmt::format("$ref '{}': only references within the document are followed", ref));
  const Json* at = &root;
  for (size_t i = 1; i < ref.size();) {
    if (ref[i] != '/') fail(path, fmt::format("$ref '{}': only JSON pointers are followed", ref));
    std::string key;
    for (++i; i < ref.size() && ref[i] != '/'; ++i) {
      if (ref[i] == '~' && i + 1 < ref.size() && (ref[i + 1] == '0' || ref[i + 1] == '1')) {
        key += ref[++i] == '0' ? '~' : '/';
      } else if (ref[i] == '%' && i + 2 < ref.size() &&
                 std::isxdigit(static_cast<unsigned char>(ref[i + 1])) &&
                 std::isxdigit(static_cast<unsigned char>(ref[i + 2]))) {
        key += static_cast<char>(std::stoi(ref.substr(i + 1, 2), nullptr, 16));
        i += 2;
      } else {
        key += ref[i];
      }
    }
    const Json* next = at->find(key);
    if (at->is_array() && !key.empty() && key.size() < 6 &&
        key.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(key);
      if (index < at->size()) next = &at->as_array()[index];
    }
    if (!next) fail(path, fmt::format("$ref '{}' leads nowhere: there is no '{}'", ref, key));
    at = next;
  }
  return *at;
}

Json merge_schemas(const Json& root, const Json& x, const Json& y, const std::string& path, int depth) {
  if (depth > kMaxDepth) fail(path, "allOf and $ref are nested too deeply to merge");
  if (x.is_bool()) return x.as_bool() ? y : x;
  if (y.is_bool()) return y.as_bool() ? x : y;
  object(x, path);
  object(y, path);
  // References and allOf inside the parts first.
  auto flat = [&](const Json& s) {
    Json own = Json(Json::Object{}), out = Json(true);
    for (const auto& [key, value] : s.as_object())
      if (key != "$ref" && key != "allOf" && !is_schema_annotation(key)) own.set(key, value);
    out = own;
    if (const Json* ref = s.find("$ref")) {
      if (!ref->is_string()) fail(path, "$ref: expected string");
      out = merge_schemas(root, out, resolve_schema_ref(root, ref->as_string(), path), path, depth + 1);
    }
    if (const Json* all = s.find("allOf")) {
      if (!all->is_array()) fail(path, "allOf: expected array");
      for (const Json& part : all->as_array()) out = merge_schemas(root, out, part, path, depth + 1);
    }
    return out;
  };
  const Json a = flat(x), b = flat(y);
  if (a.is_bool() || b.is_bool()) return merge_schemas(root, a, b, path, depth + 1);

  Json out = a;
  for (const auto& [key, value] : b.as_object()) {
    const Json* mine = a.find(key);
    if (key == "enum" || key == "const") continue;  // below
    if (!mine || *mine == value) {
      out.set(key, value);
    } else if (key == "type") {
      Json::Array types;
      for (const auto& t : common_types(types_of(a), types_of(b))) types.emplace_back(t);
      out.set(key, Json(std::move(types)));
    } else if (key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems") {
      if (!mine->is_number() || !value.is_number()) fail(path, key + ": expected number");
      if (is_greater(value, *mine)) out.set(key, value);
    } else if (key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems") {
      if (!mine->is_number() || !value.is_number()) fail(path, key + ": expected number");
      if (is_greater(*mine, value)) out.set(key, value);
    } else if (key == "required") {
      Json::Array names = mine->as_array();
      for (const Json& name : value.as_array())
        if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
      out.set(key, Json(std::move(names)));
    } else if (key == "properties") {
      Json both = object(*mine, path);
      for (const auto& [name, schema] : object(value, path)) {
        const Json* other = both.find(name);
        both.set(name, other ? all_of(*other, schema) : schema);
      }
      out.set(key, std::move(both));
    } else if (key == "additionalProperties" || key == "items") {
      out.set(key, all_of(*mine, value));
    } else if (key == "anyOf") {
      Json::Array branches;
      for (const Json& p : mine->as_array())
        for (const Json& q : value.as_array()) branches.push_back(all_of(p, q));
      if (branches.size() > kMaxBranches)
        fail(path, "anyOf in several parts of allOf: too many combinations");
      out.set(key, Json(std::move(branches)));
    } else {
      fail(path, fmt::format("allOf: '{}' in two parts cannot be merged", key));
    }
  }
  if (const Json* properties = out.find("properties")) {
    Json closed = *properties;
    apply_additional(a, closed);
    apply_additional(b, closed);
    out.set("properties", std::move(closed));
  }
  Json ha, hb;
  const Json *va = schema_values(a, ha), *vb = schema_values(b, hb);
  if (va || vb) {
    Json::Array values;
    for (const Json& v : (va ? va : vb)->as_array())
      if (!va || !vb || std::find(vb->as_array().begin(), vb->as_array().end(), v) != vb->as_array().end())
        values.push_back(v);
    Json rest = Json(Json::Object{});
    for (const auto& [key, value] : out.as_object())
      if (key != "const" && key != "enum") rest.set(key, value);
    out = std::move(rest);
    out.set("enum", Json(std::move(values)));
  }
  return out;
}

Json flatten_schema(const Json& root, const Json& schema, const std::string& path) {
  return merge_schemas(root, schema, Json(Json::Object{}), path);
}

const Json* schema_values(const Json& schema, Json& holder) {
  if (const Json* c = schema.find("const")) {
    holder = Json(Json::Array{*c});
    return &holder;
  }
  const Json* e = schema.find("enum");
  return e && e->is_array() ? e : nullptr;
}

bool are_disjoint_schemas(const Json& root, const Json& x, const Json& y) {
  const Json &a = follow(root, x), &b = follow(root, y);
  if (!a.is_object() || !b.is_object()) return false;
  Json ha, hb;
  const Json *va = schema_values(a, ha), *vb = schema_values(b, hb);
  if (va && vb) return !overlap(*va, *vb);
  auto types = [](const Json& s, const Json* values) {
    std::vector<std::string> t = types_of(s);
    if (t.empty() && values)
      for (const Json& v : values->as_array()) t.push_back(type_of_value(v));
    return t;
  };
  const auto ta = types(a, va), tb = types(b, vb);
  if (ta.empty() || tb.empty()) return false;
  const auto common = common_types(ta, tb);
  if (common.empty()) return true;
  if (common.size() != 1 || common[0] != "object") return false;
  // Both objects: a member that tells them apart.
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)})
    if (const Json* required = one->find("required"); required && required->is_array())
      for (const Json& name : required->as_array()) {
        if (!name.is_string()) continue;
        if (forbids_member(*other, name.as_string())) return true;
        const Json *p = one->find("properties"), *q = other->find("properties");
        const Json *s = p ? p->find(name.as_string()) : nullptr, *t = q ? q->find(name.as_string()) : nullptr;
        if (s && t && requires_member(*other, name.as_string()) && are_disjoint_schemas(root, *s, *t))
          return true;
      }
  return false;
}

}  // namespace quern
