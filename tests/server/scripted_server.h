// A server whose answers come from a script.
#pragma once

#include <string>

#include "engine/scripted_engine.h"
#include "server/test_server.h"

namespace quern::testing {

class ScriptedServer : public TestServer {
 public:
  explicit ScriptedServer(const std::string& script, ServiceOptions options = {}, int max_running = 256,
                          int max_queue = 1024) {
    const Tokenizer& tokenizer = tiny_tokenizer();
    ScriptedEngineOptions engine_options;
    engine_options.vocab = tokenizer.size();
    engine_options.end_id = *tokenizer.find_special("<|im_end|>");
    engine_options.max_running = max_running;
    engine_options.max_queue = max_queue;
    engine_options.decode = [&](std::span<const int32_t> ids) { return tokenizer.decode(ids); };
    engine = make_scripted_engine(
        parse_script(script,
                     [&](std::string_view text) { return tokenizer.encode(text, ControlTokens::Recognise); }),
        engine_options);
    serve(std::move(options));
  }
};

// A script with one reply to everything.
inline std::string script_of(const std::string& text, const std::string& more = "") {
  return R"({"replies":[{"match":"","text":)" + write_json(Json(text)) + (more.empty() ? "" : "," + more) +
         "}]}";
}

}  // namespace quern::testing
