// Writes a folder's safetensors: one model.safetensors, or shards with an index where that would exceed
// `shard_bytes`. The tensors' names, types and shapes are known beforehand, so the bytes stream through.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "checkpoint/tensor_export.h"

namespace quern {

// Throws Error naming the file. `folder` exists.
void write_safetensors(const std::filesystem::path& folder, const std::vector<ExportTensor>& tensors,
                       ThreadPool& pool, const Progress& progress = {},
                       int64_t shard_bytes = int64_t{4} << 30);

}  // namespace quern
