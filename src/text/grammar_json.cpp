#include "text/grammar_json.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"
#include "base/utf8.h"
#include "text/grammar_automaton.h"
#include "text/grammar_number.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema.h"

namespace quern {
namespace {

using Id = GrammarSource::Id;
constexpr int kUnbounded = GrammarSource::kUnbounded;
constexpr int kMaxDepth = 64;            // of schemas inside each other
constexpr size_t kMaxProperties = 1000;  // of one object
constexpr int kMaxCount = 100'000;       // of items or characters
constexpr size_t kMaxNodes = 100'000;    // schemas in all

const std::map<std::string_view, std::string_view>& formats() {
#define DATE                                                                                                 \
  "[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[" \
  "1-9]|1[0-9]|2[0-8]))"
#define TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
// At most 63 characters; no two hyphens side by side, which internationalised names keep for themselves. With at most
// four of them a name is no longer than the 253 characters it may have.
#define LABEL "(?:[A-Za-z0-9]{1,60}|[A-Za-z0-9](?:-?[A-Za-z0-9]){0,30})"
#define SHORT_LABEL "[A-Za-z0-9](?:-?[A-Za-z0-9]){0,13}"
#define HOST "(?:" LABEL "(?:\\." LABEL "){0,3}|" SHORT_LABEL "(?:\\." SHORT_LABEL "){4,7})"
#define URI_PLAIN "A-Za-z0-9._~!$&'()*+,;="
#define URI_ESCAPE "%[0-9A-Fa-f]{2}"
  static const std::map<std::string_view, std::string_view> table = {
      {"date", DATE},
      {"time", TIME},
      {"date-time", DATE "T" TIME},
      {"duration",
       "P(?:[0-9]{1,4}W|[0-9]{1,4}D|(?:[0-9]{1,4}D)?T(?:[0-9]{1,4}H(?:[0-9]{1,4}M)?(?:[0-9]{1,4}S)?|[0-9]{1,"
       "4}M(?:[0-9]{1,4}S)?|[0-9]{1,4}S))"},
      {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
      {"email", "[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" LABEL "(?:\\." LABEL "){1,2}"},
      {"hostname", HOST},
      {"ipv4", BYTE "(?:\\." BYTE "){3}"},
      {"ipv6", "(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::|::1|(?:[0-9a-fA-F]{1,4}:){1,6}:[0-9a-fA-F]{1,4}"},
      {"uri",
       "[a-z][a-z0-9+.-]{1,15}://" HOST "(?::[0-9]{1,4})?(?:/(?:[" URI_PLAIN ":@/-]|" URI_ESCAPE
       ")*)?(?:\\?(?:[" URI_PLAIN ":@/?-]|" URI_ESCAPE ")*)?(?:#(?:[" URI_PLAIN ":@/?-]|" URI_ESCAPE ")*)?"},
  };
#undef DATE
#undef TIME
#undef BYTE
#undef LABEL
#undef SHORT_LABEL
#undef HOST
#undef URI_PLAIN
#undef URI_ESCAPE
  return table;
}

// The expressions every JSON grammar is made of.
struct Pieces {
  GrammarSource& s;
  Id space, colon, comma, string, number, value = -1;
  int value_rule = -1;

  explicit Pieces(GrammarSource& source) : s(source) {
    auto run = [&](char c, int min, int max) { return s.repeat(s.bytes(std::string(1, c)), min, max); };
    space =
        s.alt({s.bytes(""), s.bytes(" "), s.seq({s.bytes("\n"), s.alt({run(' ', 0, 32), run('\t', 1, 8)})})});
    colon = s.alt({s.bytes(":"), s.bytes(": ")});
    comma = s.seq({s.bytes(","), space});
    string = s.json_string();
    number = json_number(s, {});
  }
  Id any_value() {
    if (value_rule < 0) {
      value_rule = s.add_rule("any JSON value");
      value = s.rule(value_rule);
      s.rules[value_rule].body = s.alt({any_object(), array(value, 0, kUnbounded), string, number,
                                        s.bytes("true"), s.bytes("false"), s.bytes("null")});
    }
    return value;
  }
  Id any_object() {
    const Id member = s.seq({string, colon, any_value()});
    const Id members = s.seq({member, s.repeat(s.seq({comma, member}), 0, kUnbounded)});
    return s.seq({s.bytes("{"), space, s.optional(s.seq({members, space})), s.bytes("}")});
  }
  Id array(Id item, int min, int max) {
    if (max == 0) return s.seq({s.bytes("["), space, s.bytes("]")});
    if (min > 2 || max > 3) item = s.rule(s.add_rule("items", item));
    const Id more = s.repeat(s.seq({comma, item}), std::max(0, min - 1), max == kUnbounded ? max : max - 1);
    Id items = s.seq({item, more, space});
    if (min == 0) items = s.optional(items);
    return s.seq({s.bytes("["), space, items, s.bytes("]")});
  }
  Id literal(const Json& v) {
    if (v.is_array()) {
      std::vector<Id> parts{s.bytes("["), space};
      for (const Json& item : v.as_array()) {
        if (parts.size() > 2) parts.push_back(comma);
        parts.push_back(literal(item));
      }
      if (v.size()) parts.push_back(space);
      parts.push_back(s.bytes("]"));
      return s.seq(std::move(parts));
    }
    if (v.is_object()) {
      std::vector<Id> parts{s.bytes("{"), space};
      for (const auto& [key, value] : v.as_object()) {
        if (parts.size() > 2) parts.push_back(comma);
        parts.push_back(s.bytes(write_json(Json(key))));
        parts.push_back(colon);
        parts.push_back(literal(value));
      }
      if (v.size()) parts.push_back(space);
      parts.push_back(s.bytes("}"));
      return s.seq(std::move(parts));
    }
    return s.bytes(write_json(v));
  }
  // A key that is none of `names`, of plain characters.
  Id other_key(const std::vector<std::string>& names) {
    std::vector<std::u32string> text;
    for (const std::string& name : names) {
      std::u32string t;
      for (size_t i = 0; i < name.size();) {
        const Utf8Char c = decode_utf8(name, i);
        t += c.code_point;
        i += c.size;
      }
      text.push_back(std::move(t));
    }
    std::sort(text.begin(), text.end());
    return s.seq({s.bytes("\""), other_key(text, 0, text.size(), 0), s.bytes("\"")});
  }
  // What may follow a prefix shared by text[low, high), `at` characters long.
  Id other_key(const std::vector<std::u32string>& text, size_t low, size_t high, size_t at) {
    const Id tail = s.repeat(s.chars(plain_chars()), 0, kUnbounded);
    if (at > 64) return s.seq({s.chars(plain_chars()), tail});  // long names: keys that go on beyond them
    CharSet others = plain_chars();
    std::vector<Id> parts;
    bool is_name = false;
    while (low < high) {
      if (text[low].size() == at) {
        is_name = true;
        ++low;
        continue;
      }
      const char32_t c = text[low][at];
      size_t end = low;
      while (end < high && text[end][at] == c) ++end;
      others = others.minus({{c, c}});
      if (plain_chars().contains(c))
        parts.push_back(s.seq({s.chars({{c, c}}), other_key(text, low, end, at + 1)}));
      low = end;
    }
    parts.push_back(s.seq({s.chars(others), tail}));
    if (!is_name) parts.push_back(s.bytes(""));
    return s.alt(std::move(parts));
  }
};

class Compiler {
 public:
  Compiler(GrammarSource& source, const Json& root) : s_(source), root_(root), p_(source) {}

  Id compile(const Json& start, const std::string& path) {
    const Id id = schema(start, path, 0);
    while (
        !pending_.empty()) {  // the bodies of references, one after the other: no recursion however they nest
      const auto [rule, target, name] = pending_.back();
      pending_.pop_back();
      const Id body = schema(*target, name, 0);
      s_.rules[rule].body = body;
    }
    return id;
  }

 private:
  struct Pending {
    int rule;
    const Json* target;
    std::string name;
  };

  [[noreturn]] static void fail(const std::string& path, const std::string& what) {
    throw Error(fmt::format("JSON schema: {}: {}", path, what));
  }
  static int count(const Json& schema, const char* key, int absent, const std::string& path) {
    const Json* v = schema.find(key);
    if (!v) return absent;
    const bool natural = v->is_int() || (v->is_float() && v->as_double() == std::trunc(v->as_double()));
    const double n = natural ? v->as_double() : -1;
    if (n < 0) fail(path, fmt::format("{}: expected a natural number", key));
    if (n > kMaxCount)
      fail(path, fmt::format("{}: {} is beyond the limit of {}", key, write_json(*v), kMaxCount));
    return static_cast<int>(n);
  }

  Id schema(const Json& schema, const std::string& path, int depth);
  Id reference(const std::string& ref, const std::string& path);
  Id branches(const Json& schema, const char* key, const std::string& path, int depth);
  Id values(const Json& schema, const Json& list, const std::string& path);
  Id typed(const Json& schema, const std::string& type, const std::string& path, int depth);
  Id string(const Json& schema, const std::string& path);
  Id number(const Json& schema, bool integer, const std::string& path);
  Id array(const Json& schema, const std::string& path, int depth);
  Id object(const Json& schema, const std::string& path, int depth);

  GrammarSource& s_;
  const Json& root_;
  Pieces p_;
  std::map<std::string, int> refs_;
  std::vector<Pending> pending_;
  size_t n_schemas_ = 0;
};

constexpr std::string_view kStringKeys[] = {"minLength", "maxLength", "pattern", "format"};
constexpr std::string_view kNumberKeys[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
constexpr std::string_view kArrayKeys[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"};
constexpr std::string_view kObjectKeys[] = {"properties", "required", "additionalProperties",
                                            "propertyNames"};
constexpr std::string_view kOtherKeys[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};

template <size_t N>
bool is_one(std::string_view key, const std::string_view (&keys)[N]) {
  return std::find(std::begin(keys), std::end(keys), key) != std::end(keys);
}
template <size_t N>
bool has_one(const Json& schema, const std::string_view (&keys)[N]) {
  return std::any_of(std::begin(keys), std::end(keys), [&](auto key) { return schema.find(key) != nullptr; });
}

Id Compiler::schema(const Json& schema, const std::string& path, int depth) {
  if (depth > kMaxDepth)
    fail(path.substr(0, 80) + "…", fmt::format("nested deeper than {} levels", kMaxDepth));
  if (++n_schemas_ > kMaxNodes) fail(path, fmt::format("more than {} schemas", kMaxNodes));
  if (schema.is_bool()) return schema.as_bool() ? p_.any_value() : s_.alt({});
  if (!schema.is_object()) fail(path, fmt::format("expected a schema, found {}", kind_name(schema.kind())));

  size_t n_constraints = 0;
  for (const auto& [key, value] : schema.as_object()) {
    if (is_schema_annotation(key)) continue;
    if (!is_one(key, kStringKeys) && !is_one(key, kNumberKeys) && !is_one(key, kArrayKeys) &&
        !is_one(key, kObjectKeys) && !is_one(key, kOtherKeys))
      fail(path, fmt::format("keyword '{}' is not supported", key));
    ++n_constraints;
  }
  if (n_constraints == 0) return p_.any_value();
  if (const Json* ref = schema.find("$ref"); ref && n_constraints == 1) {
    if (!ref->is_string()) fail(path, "$ref: expected string");
    return reference(ref->as_string(), path);
  }
  if (const Json* all = schema.find("allOf");
      all && n_constraints == 1 && all->is_array() && all->size() == 1)
    return this->schema(all->as_array()[0], path + "/allOf/0", depth + 1);
  if (schema.find("$ref") || schema.find("allOf"))
    return this->schema(flatten_schema(root_, schema, path), path + "(allOf)", depth + 1);
  for (const char* key : {"anyOf", "oneOf"})
    if (schema.find(key)) return branches(schema, key, path, depth);
  Json holder;
  if (const Json* list = schema_values(schema, holder)) return values(schema, *list, path);

  std::vector<std::string> types;
  if (const Json* type = schema.find("type")) {
    const Json list = type->is_array() ? *type : Json(Json::Array{*type});
    for (const Json& t : list.as_array()) {
      if (!t.is_string()) fail(path, "type: expected a string or strings");
      types.push_back(t.as_string());
    }
  } else {  // the types that the keywords speak of
    if (has_one(schema, kObjectKeys)) types.emplace_back("object");
    if (has_one(schema, kArrayKeys)) types.emplace_back("array");
    if (has_one(schema, kStringKeys)) types.emplace_back("string");
    if (has_one(schema, kNumberKeys)) types.emplace_back("number");
    if (types.empty()) fail(path, "enum: expected array");
  }
  const bool number = std::find(types.begin(), types.end(), "number") != types.end();
  std::vector<Id> parts;
  for (const std::string& type : types)
    if (type != "integer" || !number) parts.push_back(typed(schema, type, path, depth));
  return s_.alt(std::move(parts));
}

Id Compiler::reference(const std::string& ref, const std::string& path) {
  const auto [at, fresh] = refs_.try_emplace(ref, 0);
  if (fresh) {
    const Json& target = resolve_schema_ref(root_, ref, path);
    at->second = s_.add_rule(ref);
    pending_.push_back({at->second, &target, ref});
  }
  return s_.rule(at->second);
}

Id Compiler::branches(const Json& schema, const char* key, const std::string& path, int depth) {
  const Json& list = *schema.find(key);
  if (!list.is_array() || list.size() == 0) fail(path, fmt::format("{}: expected schemas", key));
  Json rest = Json(Json::Object{});
  for (const auto& [k, v] : schema.as_object())
    if (k != key && !is_schema_annotation(k)) rest.set(k, v);
  const auto& all = list.as_array();
  if (std::string_view(key) == "oneOf")
    for (size_t i = 0; i < all.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!are_disjoint_schemas(root_, all[i], all[j]))
          fail(path, fmt::format("oneOf: a value might fit both branch {} and branch {}; use anyOf", j, i));
  std::vector<Id> parts;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::string name = fmt::format("{}/{}/{}", path, key, i);
    parts.push_back(
        this->schema(rest.size() ? merge_schemas(root_, all[i], rest, name) : all[i], name, depth + 1));
  }
  return s_.alt(std::move(parts));
}

// Of an enum or const: those of the right type. Other constraints beside it would have to be checked value by
// value.
Id Compiler::values(const Json& schema, const Json& list, const std::string& path) {
  for (const auto& [key, value] : schema.as_object())
    if (!is_schema_annotation(key) && key != "enum" && key != "const" && key != "type")
      fail(path, fmt::format("'{}' beside enum or const is not supported", key));
  Json filter;
  if (const Json* enumeration = schema.find("enum"); enumeration && schema.find("const"))
    filter = *enumeration;
  std::vector<std::string> types;
  if (const Json* type = schema.find("type"))
    for (const Json& t : type->is_array() ? type->as_array() : Json::Array{*type})
      if (t.is_string()) types.push_back(t.as_string());
  auto has = [&](std::string_view t) { return std::find(types.begin(), types.end(), t) != types.end(); };
  std::vector<Id> parts;
  for (const Json& v : list.as_array()) {
    const std::string_view kind = kind_name(v.kind());
    const bool whole = kind == "integer" || (v.is_float() && std::trunc(v.as_double()) == v.as_double());
    const bool fits =
        types.empty() || has(kind) || (kind == "integer" && has("number")) || (whole && has("integer"));
    const bool listed = !filter.is_array() || std::find(filter.as_array().begin(), filter.as_array().end(),
                                                        v) != filter.as_array().end();
    if (fits && listed) parts.push_back(p_.literal(v));
  }
  if (parts.empty()) fail(path, "enum: no value is left");
  return s_.alt(std::move(parts));
}

Id Compiler::typed(const Json& schema, const std::string& type, const std::string& path, int depth) {
  if (type == "null") return s_.bytes("null");
  if (type == "boolean") return s_.alt({s_.bytes("true"), s_.bytes("false")});
  if (type == "string") return string(schema, path);
  if (type == "integer" || type == "number") return number(schema, type == "integer", path);
  if (type == "array") return array(schema, path, depth);
  if (type == "object") return object(schema, path, depth);
  fail(path, fmt::format("type '{}' is not known", type));
}

Id Compiler::string(const Json& schema, const std::string& path) {
  const int min = count(schema, "minLength", 0, path), max = count(schema, "maxLength", kUnbounded, path);
  const Json *pattern = schema.find("pattern"), *format = schema.find("format");
  if (!pattern && !format) {
    if (max != kUnbounded && min > max)
      fail(path, fmt::format("minLength {} is above maxLength {}", min, max));
    return s_.json_string(min, max);
  }
  if (pattern && format) {
    if (!format->is_string()) fail(path, "format: expected string");
    const bool spelled_out = pattern->is_string() && pattern->as_string().starts_with('^') &&
                             pattern->as_string().ends_with('$') && !pattern->as_string().ends_with("\\$");
    if (!spelled_out && string_format(format->as_string()))
      fail(path, "'pattern' without ^ and $ beside 'format' is not supported");
    format = nullptr;
  }
  if (schema.find("minLength") || schema.find("maxLength"))
    fail(path,
         fmt::format("minLength or maxLength beside '{}' is not supported", pattern ? "pattern" : "format"));
  const Json& text = pattern ? *pattern : *format;
  if (!text.is_string()) fail(path, fmt::format("{}: expected string", pattern ? "pattern" : "format"));
  std::string regex = text.as_string();
  if (format) {
    const auto known = string_format(regex);
    if (!known) fail(path, fmt::format("format '{}' is not supported", regex));
    regex = *known;
  }
  try {
    const auto anchors = pattern ? RegexAnchors::Search : RegexAnchors::Whole;
    return s_.seq({s_.bytes("\""), parse_regex(s_, regex, anchors, write_json_char), s_.bytes("\"")});
  } catch (const Error& e) {
    fail(path + (pattern ? "/pattern" : "/format"), e.what());
  }
}

Id Compiler::number(const Json& schema, bool integer, const std::string& path) {
  NumberBounds b;
  for (const char* key : {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"}) {
    const Json* v = schema.find(key);
    if (!v) continue;
    if (!v->is_number()) fail(path, fmt::format("{}: expected number, found {}", key, kind_name(v->kind())));
    const std::string_view name = key;
    const bool exclusive = name.starts_with("exclusive"), is_min = name.ends_with("inimum");
    auto& bound = is_min ? b.min : b.max;
    auto& is_exclusive = is_min ? b.min_exclusive : b.max_exclusive;
    const bool tighter =
        !bound || (is_min ? v->as_double() >= bound->as_double() : v->as_double() <= bound->as_double());
    if (tighter) {
      bound = *v;
      is_exclusive = exclusive;
    }
  }
  try {
    return integer ? json_integer(s_, b) : json_number(s_, b);
  } catch (const Error& e) {
    fail(path, e.what());
  }
}

Id Compiler::array(const Json& schema, const std::string& path, int depth) {
  const int min = count(schema, "minItems", 0, path), max = count(schema, "maxItems", kUnbounded, path);
  if (max != kUnbounded && min > max) fail(path, fmt::format("minItems {} is above maxItems {}", min, max));
  if (const Json* unique = schema.find("uniqueItems"); unique && !(*unique == Json(false)))
    fail(path, "keyword 'uniqueItems' is not supported");
  const Json *items = schema.find("items"), *prefix = schema.find("prefixItems");
  if (items && items->is_array())
    fail(path, "items: expected a schema, found array (prefixItems lists schemas)");
  if (prefix && !prefix->is_array()) fail(path, "prefixItems: expected array");
  std::vector<Id> first;
  if (prefix)
    for (size_t i = 0; i < prefix->size(); ++i)
      first.push_back(
          this->schema(prefix->as_array()[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1));
  const int n = static_cast<int>(first.size());
  const bool closed = (items && *items == Json(false)) || (!items && n > 0 && min <= n);
  if (closed && min > n) fail(path, fmt::format("minItems {} is above the {} items there are", min, n));
  const Id item = closed ? -1 : items ? this->schema(*items, path + "/items", depth + 1) : p_.any_value();
  if (n == 0) return closed ? p_.array(-1, 0, 0) : p_.array(item, min, max);

  // From the last item to the first: what may follow i items.
  Id rest = s_.bytes("");
  if (!closed && (max == kUnbounded || max > n))
    rest = s_.repeat(s_.seq({p_.comma, s_.rule(s_.add_rule("items", item))}), std::max(0, min - n),
                     max == kUnbounded ? max : max - n);
  for (int i = n - 1; i >= 0; --i) {
    if (max != kUnbounded && i >= max) continue;
    Id next = i > 0 ? s_.seq({p_.comma, first[i], rest}) : s_.seq({first[0], rest, p_.space});
    if (i >= min) next = s_.optional(next);
    rest = next;
  }
  if (max == 0) return p_.array(-1, 0, 0);
  return s_.seq({s_.bytes("["), p_.space, rest, s_.bytes("]")});
}

// Whether every string fits: true, {} or {"type": "string"}.
bool is_any_name(const Json& names) {
  if (names == Json(true)) return true;
  if (!names.is_object()) return false;
  for (const auto& [key, value] : names.as_object())
    if (!is_schema_annotation(key) && !(key == "type" && value == Json("string"))) return false;
  return true;
}

Id Compiler::object(const Json& schema, const std::string& path, int depth) {
  struct Member {
    std::string name;
    const Json* schema;
    bool required;
  };
  static const Json anything(true);
  const Json *properties = schema.find("properties"), *required = schema.find("required"),
             *additional = schema.find("additionalProperties");
  if (properties && !properties->is_object()) fail(path, "properties: expected object");
  if (required && !required->is_array()) fail(path, "required: expected array");
  std::vector<Member> members;
  if (properties)
    for (const auto& [name, s] : properties->as_object()) members.push_back({name, &s, false});
  bool open = additional ? !(*additional == Json(false)) : members.empty() && !(required && required->size());
  if (const Json* names = schema.find("propertyNames"); names && !is_any_name(*names)) {
    const Json* listed = names->find("enum");
    if (!listed || !listed->is_array() || properties) fail(path, "this 'propertyNames' is not supported");
    for (const Json& name : listed->as_array())
      if (name.is_string() && open)
        members.push_back({name.as_string(), additional ? additional : &anything, false});
    open = false;
  }
  if (required)
    for (const Json& name : required->as_array()) {
      if (!name.is_string()) fail(path, "required: expected strings");
      auto at = std::find_if(members.begin(), members.end(),
                             [&](const Member& m) { return m.name == name.as_string(); });
      if (at == members.end()) {
        if (additional && !open)
          fail(path, fmt::format("'{}' is required, and additionalProperties forbids it", name.as_string()));
        members.push_back({name.as_string(), additional ? additional : &anything, true});
      } else {
        at->required = true;
      }
    }
  if (members.size() > kMaxProperties) fail(path, fmt::format("more than {} properties", kMaxProperties));
  if (members.empty() && open && (!additional || additional->is_bool())) return p_.any_object();

  // What may follow the last member, and what may stand where there is none.
  Id after = s_.bytes(""), before = s_.bytes("");
  if (open) {
    std::vector<std::string> names;
    for (const Member& m : members) names.push_back(m.name);
    Id value =
        additional ? this->schema(*additional, path + "/additionalProperties", depth + 1) : p_.any_value();
    value = s_.rule(s_.add_rule("additionalProperties", value));
    const Id member = s_.seq({names.empty() ? p_.string : p_.other_key(names), p_.colon, value});
    after = s_.repeat(s_.seq({p_.comma, member}), 0, kUnbounded);
    before = s_.optional(s_.seq({member, after}));
  }
  std::vector<Id> parts;
  std::string flags;
  for (const Member& m : members) {
    const Id value = this->schema(*m.schema, fmt::format("{}/properties/{}", path, m.name), depth + 1);
    parts.push_back(s_.seq({s_.bytes(write_json(Json(m.name))), p_.colon, value}));
    flags += m.required ? '1' : '0';
  }
  const Id all = s_.members(p_.comma, after, before, parts, std::move(flags));
  return s_.seq({s_.bytes("{"), p_.space, all, p_.space, s_.bytes("}")});
}

}  // namespace

std::optional<std::string_view> string_format(std::string_view name) {
  const auto known = formats().find(name);
  if (known == formats().end()) return std::nullopt;
  return known->second;
}

Id json_any_value(GrammarSource& source) { return Pieces(source).any_value(); }
Id json_any_object(GrammarSource& source) { return Pieces(source).any_object(); }

Id json_schema(GrammarSource& source, const Json& schema, const std::string& path, const Json* root) {
  return Compiler(source, root ? *root : schema).compile(schema, path);
}

}  // namespace quern
