// The config of a GGUF file, from its qwen4exp keys (MODEL.md §1.2).
#pragma once

#include "checkpoint/gguf.h"
#include "model/config.h"

namespace quern {

// Throws Error naming the file, the key and the value.
Config parse_gguf_config(const GgufFile& file);

}  // namespace quern
