#include "checkpoint/generation_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/json_file.h"
#include "base/mapped_file.h"
#include "checkpoint/gguf.h"

namespace quern {
namespace {

struct Reader {
  const Json& json;
  const std::string& file;

  // The member, or null where it is absent or null.
  const Json* get(std::string_view key) const {
    const Json* v = json.find(key);
    return v == nullptr || v->is_null() ? nullptr : v;
  }
  [[noreturn]] void fail(std::string_view key, std::string_view expected, const Json& found) const {
    throw Error(fmt::format("{}: {}: expected {}, found {}", file, key, expected, write_json(found)));
  }
  std::optional<double> number(std::string_view key, double low, double high,
                               std::string_view expected) const {
    const Json* v = get(key);
    if (v == nullptr) return {};
    if (!v->is_number()) fail(key, expected, *v);
    const double x = v->as_double();
    if (!(x >= low && x <= high)) fail(key, expected, *v);
    return x;
  }
  int32_t id(std::string_view key, const Json& v) const {
    if (!v.is_int() || v.as_int() < 0 || v.as_int() > INT32_MAX) fail(key, "a token id", v);
    return static_cast<int32_t>(v.as_int());
  }
};

GenerationConfig generation_of_gguf(const GgufFile& f) {
  GenerationConfig c;
  const auto number = [&](std::string_view key, double high) -> std::optional<double> {
    if (f.find(key) == nullptr) return {};
    const double v = f.number(key);
    if (!(v >= 0 && v <= high))
      f.fail(key, fmt::format("expected a number from 0 to {:g}, found {}", high, v));
    // 0.8 in float32 is 0.800000011920929 in double: the shortest decimal is what was meant.
    return f.find(key)->type == GgufType::F32 ? std::stod(fmt::format("{}", static_cast<float>(v))) : v;
  };
  c.temperature = number("general.sampling.temp", 1e6);
  c.top_p = number("general.sampling.top_p", 1);
  c.min_p = number("general.sampling.min_p", 1);
  if (const auto k = number("general.sampling.top_k", 1e9)) c.top_k = static_cast<int64_t>(*k);
  const GgufValue* tokens = f.find("tokenizer.ggml.tokens");
  const int64_t vocab = tokens != nullptr ? static_cast<int64_t>(tokens->strings.size()) : INT32_MAX;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                     "tokenizer.ggml.eom_token_id", "qwen4exp.ple.eos_token_id"}) {
    if (f.find(key) == nullptr) continue;
    const int64_t id = f.integer(key);
    if (id < 0 || id >= vocab)
      f.fail(key, fmt::format("expected a token id from 0 to {}, found {}", vocab - 1, id));
    if (std::find(c.eos_ids.begin(), c.eos_ids.end(), id) == c.eos_ids.end())
      c.eos_ids.push_back(static_cast<int32_t>(id));
  }
  return c;
}

}  // namespace

GenerationConfig parse_generation_config(const Json& json, const std::string& file) {
  if (!json.is_object())
    throw Error(fmt::format("{}: expected an object, found {}", file, kind_name(json.kind())));
  const Reader r{json, file};
  GenerationConfig c;
  if (const Json* v = r.get("do_sample")) {
    if (!v->is_bool()) r.fail("do_sample", "true or false", *v);
    c.do_sample = v->as_bool();
  }
  c.temperature = r.number("temperature", 0, 1e6, "a number from 0 on");
  c.top_p = r.number("top_p", 0, 1, "a number from 0 to 1");
  c.min_p = r.number("min_p", 0, 1, "a number from 0 to 1");
  c.repetition_penalty = r.number("repetition_penalty", 1e-6, 1e6, "a positive number");
  if (const Json* v = r.get("top_k")) {
    if (!v->is_int() || v->as_int() < 0) r.fail("top_k", "an integer from 0 on", *v);
    c.top_k = v->as_int();
  }
  if (const Json* v = r.get("eos_token_id")) {
    if (v->is_array()) {
      for (const Json& id : v->as_array()) c.eos_ids.push_back(r.id("eos_token_id", id));
    } else {
      c.eos_ids.push_back(r.id("eos_token_id", *v));
    }
  }
  return c;
}

GenerationConfig read_generation_config(const std::filesystem::path& model) {
  if (const auto gguf = find_gguf(model)) {
    const auto file = MappedFile::open(*gguf);
    return generation_of_gguf(parse_gguf(file->bytes(), gguf->string()));
  }
  const std::filesystem::path path = folder_of_model(model) / "generation_config.json";
  if (!std::filesystem::exists(path)) return {};
  return parse_generation_config(read_json_file(path, size_t{1} << 20), path.string());
}

GenerationConfig read_generation_config(const Checkpoint& checkpoint) {
  return checkpoint.gguf() != nullptr ? generation_of_gguf(*checkpoint.gguf())
                                      : read_generation_config(checkpoint.folder());
}

}  // namespace quern
