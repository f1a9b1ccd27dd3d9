// A JSON file, read whole.
#pragma once

#include <cstddef>
#include <filesystem>

#include "base/json.h"

namespace quern {

// Throws Error naming the path: for a file that cannot be read, has more than `max_bytes`, or is no JSON within `limits`.
Json read_json_file(const std::filesystem::path& path, size_t max_bytes, const JsonLimits& limits = {});

}  // namespace quern
