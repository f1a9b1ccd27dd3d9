#include "text/grammar_tools.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"
#include "text/grammar_json.h"
#include "text/grammar_regex.h"
#include "text/grammar_schema.h"

namespace quern {
namespace {

using Id = GrammarSource::Id;
constexpr int kUnbounded = GrammarSource::kUnbounded;
constexpr std::string_view kParameterEnd = "\n</parameter>\n";
constexpr size_t kMaxTools = 1024;

// Could a value that fits be a string? Such values are written without quotes.
enum class Stringness { Never, Maybe, Only };

Stringness stringness(const Json& root, const Json& schema, const std::string& path, int depth) {
  if (depth > 32) return Stringness::Maybe;
  if (!schema.is_object()) return Stringness::Maybe;
  if (schema.find("allOf") || (schema.find("$ref") && schema.size() > 1))
    return stringness(root, flatten_schema(root, schema, path), path, depth + 1);
  if (const Json* ref = schema.find("$ref"))
    return stringness(root, resolve_schema_ref(root, ref->as_string(), path), path, depth + 1);
  auto all = [](bool any, bool only) {
    return only ? Stringness::Only : any ? Stringness::Maybe : Stringness::Never;
  };
  Json holder;
  if (const Json* values = schema_values(schema, holder)) {
    bool any = false, only = true;
    for (const Json& v : values->as_array()) (v.is_string() ? any : only) = v.is_string();
    return all(any, only && any);
  }
  if (const Json* type = schema.find("type")) {
    bool any = false, only = true;
    for (const Json& t : type->is_array() ? type->as_array() : Json::Array{*type})
      (t == Json("string") ? any : only) = t == Json("string");
    return all(any, only && any);
  }
  for (const char* key : {"anyOf", "oneOf"})
    if (const Json* branches = schema.find(key); branches && branches->is_array()) {
      bool any = false, only = true;
      for (const Json& b : branches->as_array()) {
        const Stringness s = stringness(root, b, path, depth + 1);
        any |= s != Stringness::Never;
        only &= s == Stringness::Only;
      }
      return all(any, only && any);
    }
  for (const char* key : {"properties", "items", "required", "minimum", "maximum"})
    if (schema.find(key)) return Stringness::Never;
  return Stringness::Maybe;
}

class ToolCompiler {
 public:
  ToolCompiler(GrammarSource& source, const GrammarVocabulary& vocabulary) : s_(source), v_(vocabulary) {}

  // A tag is one token where the vocabulary has it.
  Id tag(std::string_view spelling) {
    const auto id = v_.find_added(spelling);
    return id ? s_.token(*id) : s_.bytes(spelling);
  }

  // "<function=NAME>\n…</function>\n"
  Id function(const std::string& name, const Json* parameters, const std::string& path) {
    std::vector<Id> parts{s_.bytes("<function=" + name + ">\n")};
    if (parameters && !parameters->is_null()) add_parameters(parts, *parameters, path);
    parts.push_back(s_.bytes("</function>\n"));
    return s_.seq(std::move(parts));
  }
  Id unconstrained(const std::string& name) {
    return s_.seq({s_.bytes("<function=" + name + ">\n"), any_parameters(), s_.bytes("</function>\n")});
  }

 private:
  Id any_parameters() {
    const Id key = s_.repeat(s_.chars(plain_chars().minus({{'>', '>'}, {'<', '<'}})), 1, 128);
    return s_.repeat(s_.seq({s_.bytes("<parameter="), key, s_.bytes(">\n"), s_.until(kParameterEnd)}), 0,
                     kUnbounded);
  }

  void add_parameters(std::vector<Id>& parts, const Json& given, const std::string& path) {
    if (given.is_bool() && given.as_bool()) {
      parts.push_back(any_parameters());
      return;
    }
    if (!given.is_object())
      throw Error(fmt::format("{}: expected a schema, found {}", path, kind_name(given.kind())));
    const bool merge = given.find("allOf") || given.find("$ref");
    const Json schema = merge ? flatten_schema(given, given, path) : given;
    for (const auto& [key, value] : schema.as_object())
      if (!is_schema_annotation(key) && key != "type" && key != "properties" && key != "required" &&
          key != "additionalProperties" && !(key == "strict"))
        throw Error(
            fmt::format("JSON schema: {}: keyword '{}' is not supported for a tool's parameters", path, key));
    const Json *properties = schema.find("properties"), *required = schema.find("required"),
               *additional = schema.find("additionalProperties");
    if (properties && !properties->is_object())
      throw Error(fmt::format("JSON schema: {}: properties: expected object", path));
    if (required && !required->is_array())
      throw Error(fmt::format("JSON schema: {}: required: expected array", path));
    auto is_required = [&](const std::string& name) {
      return required && std::find(required->as_array().begin(), required->as_array().end(), Json(name)) !=
                             required->as_array().end();
    };
    std::vector<Id> parameters;
    std::string flags;
    auto add = [&](const std::string& name, Id value, bool needed) {
      parameters.push_back(s_.seq({s_.bytes("<parameter=" + name + ">\n"), value}));
      flags += needed ? '1' : '0';
    };
    if (properties)
      for (const auto& [name, value] : properties->as_object())
        add(name, parameter_value(given, value, path + "/properties/" + name), is_required(name));
    if (required)
      for (const Json& name : required->as_array())
        if (name.is_string() && !(properties && properties->find(name.as_string())))
          add(name.as_string(), s_.until(kParameterEnd), true);
    const Id nothing = s_.bytes("");
    parts.push_back(s_.members(nothing, nothing, nothing, parameters, std::move(flags)));
    if (additional && !(*additional == Json(false))) parts.push_back(any_parameters());
  }

  // The value and the closing tag.
  Id parameter_value(const Json& root, const Json& schema, const std::string& path) {
    switch (stringness(root, schema, path, 0)) {
      case Stringness::Never:
        return s_.seq({json_schema(s_, schema, path, &root), s_.bytes(kParameterEnd)});
      case Stringness::Maybe:
        return s_.until(kParameterEnd);
      case Stringness::Only:
        break;
    }
    const bool merge = schema.find("allOf") || schema.find("$ref");
    const Json flat = merge ? flatten_schema(root, schema, path) : schema;
    Json holder;
    if (const Json* values = schema_values(flat, holder)) {
      std::vector<Id> texts;
      for (const Json& v : values->as_array()) texts.push_back(s_.bytes(v.as_string()));
      return s_.seq({s_.alt(std::move(texts)), s_.bytes(kParameterEnd)});
    }
    // json_schema refuses what cannot be met; of what can, the pattern and the lengths are written here
    // without quotes.
    GrammarSource scratch;
    json_schema(scratch, flat, path, &root);
    if (const Json* pattern = flat.find("pattern"))
      return s_.seq({parse_regex(s_, pattern->as_string(), RegexAnchors::Search, write_raw_char),
                     s_.bytes(kParameterEnd)});
    if (const Json* format = flat.find("format"))
      return s_.seq(
          {parse_regex(s_, *string_format(format->as_string()), RegexAnchors::Whole, write_raw_char),
           s_.bytes(kParameterEnd)});
    const Json *min = flat.find("minLength"), *max = flat.find("maxLength");
    if (!min && !max) return s_.until(kParameterEnd);
    // Without line feeds, so that the closing tag cannot be part of it.
    const Id one = s_.chars(CharSet::all().minus({{'\n', '\n'}, {'\r', '\r'}}));
    return s_.seq({s_.repeat(one, min ? static_cast<int>(min->as_double()) : 0,
                             max ? static_cast<int>(max->as_double()) : kUnbounded),
                   s_.bytes(kParameterEnd)});
  }

  GrammarSource& s_;
  const GrammarVocabulary& v_;
};

}  // namespace

Id call_list(GrammarSource& s, const GrammarVocabulary& vocabulary, const Json& tools,
             const ToolGrammar& choice) {
  if (!tools.is_array() || tools.size() == 0) throw Error("tools: expected at least one");
  if (tools.size() > kMaxTools) throw Error(fmt::format("tools: more than {}", kMaxTools));
  ToolCompiler compiler(s, vocabulary);
  std::vector<Id> functions;
  for (size_t i = 0; i < tools.size(); ++i) {
    const Json& entry = tools.as_array()[i];
    const Json* inner = entry.find("function");
    const Json& tool = inner ? *inner : entry;
    const std::string path = fmt::format("tools/{}/parameters", i);
    const Json* name = tool.find("name");
    if (!name || !name->is_string() || name->as_string().empty())
      throw Error(fmt::format("tools/{}: a function without a name", i));
    if (name->as_string().find_first_of("<>\n") != std::string::npos)
      throw Error(fmt::format("tools/{}: '<', '>' or a line feed in the name", i));
    if (choice.choice == ToolChoice::Named && name->as_string() != choice.name) continue;
    const Json* parameters = tool.find("parameters");
    try {
      functions.push_back(compiler.function(name->as_string(), parameters, path));
    } catch (const Error&) {
      // Where the model may as well not call, a schema that cannot be held to is not held to.
      if (choice.choice != ToolChoice::Auto) throw;
      functions.push_back(compiler.unconstrained(name->as_string()));
    }
  }
  if (functions.empty()) throw Error(fmt::format("tools: there is no function '{}'", choice.name));
  const Id call = s.seq({compiler.tag("<tool_call>"), s.bytes("\n"), s.alt(std::move(functions)),
                         compiler.tag("</tool_call>")});
  if (!choice.parallel) return call;
  return s.seq({call, s.repeat(s.seq({s.bytes("\n"), call}), 0, kUnbounded)});
}

Id tool_calls(GrammarSource& s, const GrammarVocabulary& vocabulary, const Json& tools,
              const ToolGrammar& choice) {
  const Id calls = call_list(s, vocabulary, tools, choice);
  if (choice.choice != ToolChoice::Auto) return calls;
  if (!vocabulary.find_added("<tool_call>"))
    throw Error("tools: the vocabulary has no token <tool_call> to tell a call from text");
  return s.seq({s.any_text(), s.optional(calls)});
}

}  // namespace quern
