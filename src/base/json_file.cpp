#include "base/json_file.h"

#include <fmt/core.h>

#include <string>

#include "base/check.h"
#include "base/mapped_file.h"

namespace quern {

Json read_json_file(const std::filesystem::path& path, size_t max_bytes, const JsonLimits& limits) {
  const std::string text = read_file(path, max_bytes);
  try {
    return parse_json(text, limits);
  } catch (const Error& e) {
    throw Error(fmt::format("{}: {}", path.string(), e.what()));
  }
}

}  // namespace quern
