// Request bodies of all four endpoints: the first byte chooses one. Every fault is an ApiError 4xx of one line; what
// passes holds nothing that the engine could not take.
#include <cmath>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/json_repair.h"
#include "base/log.h"
#include "server/anthropic.h"
#include "server/openai.h"
#include "server/responses.h"

namespace {

void check_request(const quern::ChatRequest& r, const quern::RequestLimits& limits) {
  const quern::SamplingParams& s = r.sampling;
  QUERN_CHECK(s.temperature >= 0 && s.temperature <= 2, "temperature");
  QUERN_CHECK(s.top_p >= 0 && s.top_p <= 1 && s.top_k >= 0 && s.min_p >= 0 && s.min_p <= 1, "cuts");
  for (const auto& [id, bias] : s.logit_bias)
    QUERN_CHECK(id >= 0 && id < limits.vocab && std::isfinite(bias), "logit_bias");
  for (int32_t id : r.stop_ids) QUERN_CHECK(id >= 0 && id < limits.vocab, "stop ids");
  for (int32_t id : r.raw_ids) QUERN_CHECK(id >= 0 && id < limits.vocab, "prompt ids");
  for (const std::string& stop : r.stop) QUERN_CHECK(!stop.empty(), "stop strings");
  QUERN_CHECK(r.n >= 1 && r.n <= limits.replies, "n");
  QUERN_CHECK(r.max_tokens == -1 || r.max_tokens >= 1, "max_tokens");
  QUERN_CHECK(r.thinking_budget >= -1, "thinking_budget");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  quern::set_log_level(quern::LogLevel::Off);
  static quern::ResponseStore store("");
  if (size == 0) return 0;
  quern::RequestLimits limits;
  limits.vocab = 1000, limits.context = 4096;
  std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  quern::repair_surrogates(body);
  try {
    const quern::Json json = quern::parse_json(body, {.max_depth = 256, .unique_keys = true});
    switch (data[0] % 4) {
      case 0:
        check_request(quern::parse_chat_completion(json, limits), limits);
        break;
      case 1:
        check_request(quern::parse_completion(json, limits), limits);
        break;
      case 2:
        check_request(quern::parse_anthropic_messages(json, limits, {}), limits);
        break;
      case 3:
        check_request(quern::parse_responses(json, limits, store).chat, limits);
        break;
    }
  } catch (const quern::ApiError& error) {
    QUERN_CHECK(error.status >= 400 && error.status < 500, "a fault of the request is a 4xx");
  } catch (const quern::Error&) {  // no JSON
  }
  return 0;
}
