// Any template over a small conversation ends soon, with a text or an Error.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace quern;
  static const Json variables = parse_json(
      R"({"messages":[{"role":"user","content":"Hi <|im_end|> é"},{"role":"assistant","content":null,"tool_calls":[{"name":"f","arguments":{"a":[1,2.5]}}]}],"x":-7,"s":"a,b","d":{"k":"v"},"l":[3,1,2]})");
  try {
    const JinjaBody body = parse_template({reinterpret_cast<const char*>(data), size});
    std::vector<std::pair<std::string, JinjaValue>> values;
    for (const auto& [name, value] : variables.as_object())
      values.emplace_back(name, JinjaValue::from_json(value, false));
    JinjaInterpreter interpreter({.steps = 50'000, .bytes = 4 << 20, .text_bytes = 1 << 20, .depth = 200}, 0);
    interpreter.render(body, std::move(values));
  } catch (const Error&) {
  }
  return 0;
}
