#include "cache/snapshot.h"

#include <fmt/format.h>

#include <utility>

namespace quern {

std::vector<SnapshotPart> snapshot_layout(const CacheShape& shape) {
  std::vector<SnapshotPart> parts;
  int64_t offset = 0;
  const auto part = [&](std::string name, int64_t rows, int64_t cols) {
    const int64_t bytes = 4 * rows * cols;
    parts.push_back({std::move(name), offset, bytes, rows, cols});
    offset += bytes;
  };
  const DeltaNetShape& d = shape.delta;
  for (int i = 0; i < shape.n_delta_layers; ++i) {
    part(fmt::format("delta{}.M", i), int64_t{d.n_v} * d.d_k, d.d_v);
    part(fmt::format("delta{}.conv", i), kConvHistory, d.conv_channels());
  }
  part("ple", kPleHistory, shape.wide);
  if (shape.drafts) {
    part("draft_keys", kDraftKeys, shape.d_index);
    part("hidden", 1, shape.wide);
  }
  return parts;
}

int64_t snapshot_bytes(const CacheShape& shape) {
  const auto parts = snapshot_layout(shape);
  return parts.back().offset + parts.back().bytes;
}

}  // namespace quern
