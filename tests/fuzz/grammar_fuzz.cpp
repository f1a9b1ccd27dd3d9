// Any text as a schema, a regular expression, an EBNF and tools: compiling gives a grammar or an Error of one line.
// What compiles is followed for a few tokens: masks are never empty and every token in one is accepted.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "text/grammar.h"

using namespace quern;

namespace {

void follow(const GrammarPtr& grammar, const uint8_t* choice, size_t n) {
  GrammarMatcher m(grammar);
  std::vector<uint32_t> bits(grammar->vocabulary().words());
  for (size_t step = 0; step < n && step < 6; ++step) {
    m.fill_mask(bits);
    std::vector<int32_t> ids;
    for (size_t w = 0; w < bits.size(); ++w)
      for (uint32_t b = bits[w]; b; b &= b - 1)
        ids.push_back(static_cast<int32_t>(w * 32) + __builtin_ctz(b));
    QUERN_CHECK(!ids.empty(), "an empty mask");
    QUERN_CHECK(m.accept(ids[(choice[step] * 2654435761u) % ids.size()]), "a token of the mask was refused");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto vocabulary = [] {
    const Tokenizer t = Tokenizer::from_file(QUERN_SOURCE_DIR "/models/quern-tiny/tokenizer.json");
    return std::make_shared<const GrammarVocabulary>(t, std::vector<int32_t>{*t.find_special("<|im_end|>")});
  }();
  if (size < 1 || size > 1000) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    GrammarPtr grammar;
    switch (data[0] % 4) {
      case 0:
        grammar = compile_json_schema(vocabulary, parse_json(text));
        break;
      case 1:
        grammar = compile_regex(vocabulary, text);
        break;
      case 2:
        grammar = compile_ebnf(vocabulary, text);
        break;
      case 3:
        grammar = compile_tool_calls(vocabulary, parse_json(text),
                                     {data[0] & 4 ? ToolChoice::Auto : ToolChoice::Required, "", true});
        break;
    }
    follow(grammar, data, size);
  } catch (const Error& e) {
    QUERN_CHECK(std::string_view(e.what()).find('\n') == std::string_view::npos ||
                    text.find('\n') != std::string_view::npos,
                "an error of two lines");
  }
  return 0;
}
