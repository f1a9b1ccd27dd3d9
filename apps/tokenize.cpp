// quern tokenize: text → a JSON array of ids; with --decode, ids → a JSON string.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "commands.h"
#include "text/tokenizer.h"

namespace quern {
namespace {

// A JSON array, or numbers with white space or commas between.
std::vector<int32_t> parse_ids(std::string_view text, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  if (text.starts_with('[') != text.ends_with(']')) throw Error("ids: a bracket without its partner");
  if (text.starts_with('[')) text = text.substr(1, text.size() - 2);
  const char *at = text.data(), *end = at + text.size();
  while (at < end) {
    if (is_space(*at) || *at == ',') {
      ++at;
      continue;
    }
    int32_t id = -1;
    const auto r = std::from_chars(at, end, id);
    const char* stop = at;
    while (stop < end && !is_space(*stop) && *stop != ',') ++stop;
    if (r.ec != std::errc() || r.ptr != stop || tokenizer.token_bytes(id).empty()) {
      std::string found;
      append_json_string(found, std::string_view(at, std::min<size_t>(stop - at, 40)));
      throw Error(
          fmt::format("ids: item {}: {} is no token id (there are {})", ids.size(), found, tokenizer.size()));
    }
    ids.push_back(id);
    at = stop;
  }
  return ids;
}

}  // namespace

int tokenize_main(int argc, char** argv) {
  CLI::App app("Prints the token ids of the text on standard input, or in a file, as a JSON array.");
  std::string model, file;
  bool plain = false, decode = false;
  app.add_option("MODEL", model, "a model's folder, or its tokenizer.json")->required();
  app.add_option("-f,--file", file, "read this file instead of standard input");
  app.add_flag("--plain", plain, "control tokens in the text are text");
  app.add_flag("--decode", decode, "the input is ids; print their text as a JSON string")
      ->excludes("--plain");
  if (const auto code = parse_options(app, argc, argv)) return *code;

  const Tokenizer tokenizer = Tokenizer::from_model(model);
  const std::string input = file.empty() ? read_standard_input() : read_text(file);
  std::string out;
  if (decode) {
    append_json_string(out, tokenizer.decode(parse_ids(input, tokenizer)));
  } else {
    const auto mode = plain ? ControlTokens::AsText : ControlTokens::Recognise;
    for (const int32_t id : tokenizer.encode(input, mode))
      fmt::format_to(std::back_inserter(out), "{}{}", out.empty() ? "[" : ", ", id);
    out += out.empty() ? "[]" : "]";
  }
  out += '\n';
  std::fwrite(out.data(), 1, out.size(), stdout);  // main says where it fails
  return 0;
}

}  // namespace quern
