#include "text/chat_template.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "base/check.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"
#include "text/tokenizer_config.h"

namespace quern {

std::string RenderedPrompt::text() const {
  std::string all;
  for (const PromptSegment& segment : segments) all += segment.text;
  return all;
}

void RenderedPrompt::append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  if (segments.empty() || segments.back().trusted != trusted) segments.push_back({"", trusted});
  segments.back().text += text;
}

bool RenderedPrompt::opens_thinking() const {
  for (auto segment = segments.rbegin(); segment != segments.rend(); ++segment) {
    if (!segment->trusted) continue;
    const size_t open = segment->text.rfind("<think>"), close = segment->text.rfind("</think>");
    if (open == std::string::npos && close == std::string::npos) continue;
    return close == std::string::npos || (open != std::string::npos && open > close);
  }
  return false;
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt) {
  std::vector<TextPiece> pieces;
  pieces.reserve(prompt.segments.size());
  for (const PromptSegment& segment : prompt.segments) {
    pieces.push_back({segment.text, segment.trusted ? ControlTokens::Recognise : ControlTokens::AsText});
  }
  std::vector<int32_t> ids;
  tokenizer.encode(pieces, ids);
  return ids;
}

ChatTemplate::ChatTemplate(std::string source, std::string bos, std::string eos)
    : source_(std::move(source)), bos_(std::move(bos)), eos_(std::move(eos)) {
  body_ = std::make_shared<const JinjaBody>(parse_template(source_));
  const auto message = [](const char* role, const char* content) {
    return Json(Json::Object{{"role", role}, {"content", content}});
  };
  try {
    const Json probe(Json::Array{message("user", "a"), message("assistant", "b"),
                                 message("system", "late-system-probe"), message("user", "c")});
    takes_late_system_ = render(probe, Json(), Json()).text().find("late-system-probe") != std::string::npos;
  } catch (const Error&) {
    takes_late_system_ = false;
  }
}

namespace {

// A special token of tokenizer_config.json: a string, or an object with the string as "content".
std::string token_text(const Json& config, std::string_view key) {
  const Json* token = config.find(key);
  if (token != nullptr && token->is_object()) token = token->find("content");
  return token != nullptr && token->is_string() ? token->as_string() : "";
}

}  // namespace

std::string chat_template_source(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "chat_template.jinja";
  if (std::filesystem::exists(path)) return read_file(path);
  const Json config = read_tokenizer_config(folder);
  const Json* in_config = config.find("chat_template");
  if (in_config != nullptr && in_config->is_string()) return in_config->as_string();
  if (in_config != nullptr && in_config->is_array()) {  // named templates: the one called default
    for (const Json& named : in_config->as_array()) {
      const Json *name = named.find("name"), *source = named.find("template");
      if (name != nullptr && name->is_string() && name->as_string() == "default" && source != nullptr &&
          source->is_string())
        return source->as_string();
    }
  }
  return "";
}

ChatTemplate ChatTemplate::from_model(const std::filesystem::path& model) {
  if (const auto gguf = find_gguf(model)) {
    const auto mapped = MappedFile::open(*gguf);
    const GgufFile file = parse_gguf(mapped->bytes(), gguf->string());
    const auto token = [&](std::string_view key) {
      if (file.find(key) == nullptr) return std::string();
      const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
      const int64_t id = file.integer(key);
      const bool known = tokens != nullptr && id >= 0 && static_cast<size_t>(id) < tokens->strings.size();
      return known ? std::string(tokens->strings[static_cast<size_t>(id)]) : std::string();
    };
    return ChatTemplate(std::string(file.text("tokenizer.chat_template")),
                        token("tokenizer.ggml.bos_token_id"), token("tokenizer.ggml.eos_token_id"));
  }
  const std::filesystem::path folder = folder_of_model(model);
  const Json config = read_tokenizer_config(folder);
  const std::string source = chat_template_source(folder);
  if (!source.empty())
    return ChatTemplate(source, token_text(config, "bos_token"), token_text(config, "eos_token"));
  throw Error(fmt::format(
      "{}: no chat template (neither chat_template.jinja nor chat_template in tokenizer_config.json)",
      folder.string()));
}

RenderedPrompt ChatTemplate::render(const Json& messages, const Json& tools, const Json& variables) const {
  if (!messages.is_array())
    throw Error("messages: expected an array, found " + std::string(kind_name(messages.kind())));
  const JinjaValue message_list = JinjaValue::from_json(messages, false);
  const bool has_tools = tools.size() > 0;
  std::vector<std::pair<std::string, JinjaValue>> values = {
      {"messages", message_list},
      {"tools", has_tools ? JinjaValue::from_json(tools, false) : JinjaValue::none()},
      {"documents", JinjaValue::none()},
      {"add_generation_prompt", false},
  };
  if (!bos_.empty()) values.emplace_back("bos_token", JinjaText(bos_, true));
  if (!eos_.empty()) values.emplace_back("eos_token", JinjaText(eos_, true));
  if (!variables.is_null()) {
    for (const auto& [name, value] : variables.as_object()) {
      if (name == "messages" || name == "tools" || name == "bos_token" || name == "eos_token") {
        throw Error(fmt::format("template variable '{}' is set by the request itself", name));
      }
      const auto at =
          std::find_if(values.begin(), values.end(), [&](const auto& v) { return v.first == name; });
      if (at != values.end())
        at->second = JinjaValue::from_json(value, false);
      else
        values.emplace_back(name, JinjaValue::from_json(value, false));
    }
  }

  JinjaInterpreter interpreter(JinjaLimits{}, std::time(nullptr));
  interpreter.watch(message_list.items());
  const JinjaText text = interpreter.render(*body_, std::move(values));

  RenderedPrompt prompt;
  for (size_t begin = 0; begin < text.size();) {
    const bool trusted = text.trusted_at(begin);
    size_t end = begin;
    while (end < text.size() && text.trusted_at(end) == trusted) ++end;
    prompt.segments.push_back({std::string(text.view().substr(begin, end - begin)), trusted});
    begin = end;
  }
  prompt.message_ends = interpreter.watched_ends();
  std::erase_if(prompt.message_ends, [](size_t end) { return end == 0 || end == std::string::npos; });
  std::sort(prompt.message_ends.begin(), prompt.message_ends.end());
  prompt.message_ends.erase(std::unique(prompt.message_ends.begin(), prompt.message_ends.end()),
                            prompt.message_ends.end());
  return prompt;
}

}  // namespace quern
