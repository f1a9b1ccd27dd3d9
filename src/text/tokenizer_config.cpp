#include "text/tokenizer_config.h"

#include <fmt/core.h>

#include "base/check.h"
#include "base/json_file.h"

namespace quern {

Json read_tokenizer_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return {};
  const Json json = read_json_file(path, size_t{64} << 20);
  for (const char* key : {"add_bos_token", "add_eos_token", "add_prefix_space", "split_special_tokens"}) {
    const Json* v = json.find(key);
    if (v != nullptr && !v->is_null() && !(*v == Json(false)))
      throw Error(fmt::format("{}: {}: expected false, found {}", path.string(), key, write_json(*v)));
  }
  return json;
}

}  // namespace quern
