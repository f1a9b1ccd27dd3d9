// Any reply, split by the input's own bytes, parses as the whole does. The first byte chooses the options, the second
// the cuts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/output_parser.h"

namespace {

using quern::OutputEvent;

std::vector<OutputEvent> parse(std::string_view text, const quern::OutputParserOptions& options, bool ended,
                               unsigned cut) {
  quern::OutputParser parser(options);
  std::vector<OutputEvent> all;
  const auto take = [&](const std::vector<OutputEvent>& events) {
    for (const OutputEvent& e : events) {
      if (!e.text.empty() && !all.empty() && all.back().kind == e.kind && all.back().index == e.index)
        all.back().text += e.text;
      else
        all.push_back(e);
    }
  };
  unsigned state = cut;
  for (size_t at = 0; at < text.size();) {
    bool control = false;
    size_t n = text.size() - at;
    size_t next = text.size();
    for (std::string_view tag : {"<think>", "</think>", "<tool_call>", "</tool_call>"}) {
      const size_t found = text.find(tag, at);
      if (options.tags_are_tokens && found == at) {
        control = true;
        n = tag.size();
      }
      if (options.tags_are_tokens && found < next) next = found;
    }
    if (!control) {
      n = next - at;
      if (cut != 0) n = std::min<size_t>(n, 1 + (state = state * 1103515245 + 12345) / 65536 % cut);
    }
    take(parser.push(text.substr(at, n), control));
    at += n;
  }
  take(parser.finish(ended));
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  static const quern::Json tools = quern::parse_json(
      R"([{"name":"f","parameters":{"properties":{"s":{"type":"string"},"n":{"type":"integer"}}}},{"name":"g"}])");
  quern::OutputParserOptions options;
  options.thinking = data[0] & 1;
  options.tags_are_tokens = data[0] & 2;
  if (data[0] & 4) options.tools = tools;
  if (data[0] & 8) options.stop = {"ab", "b\n", "</f"};
  options.split_reasoning = !(data[0] & 16);
  options.max_calls = data[0] & 64 ? 1 : 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto whole = parse(text, options, data[0] & 32, 0);
  if (parse(text, options, data[0] & 32, 1 + data[1] % 16) != whole) std::abort();
  std::string arguments;
  for (const OutputEvent& e : whole) {
    if (e.kind == OutputEvent::Kind::CallBegin) arguments.clear();
    if (e.kind == OutputEvent::Kind::CallArguments) arguments += e.text;
    if (e.kind == OutputEvent::Kind::CallEnd && e.complete &&
        !quern::parse_json(arguments, {.max_depth = 512}).is_object())
      std::abort();
  }
  return 0;
}
