// The recurrent part of a sequence at a position that is a multiple of 64, as a plain byte image: equal
// states give equal bytes, so snapshots compare byte for byte and lie in memory or in a file.
//
// Parts, all f32, in this order (R is the position):
//   per delta layer      M [n_v, d_k, d_v]; conv [3, C]: the qkv rows of positions R-3 … R-1
//   ple [9, W]           the PLE conv rows of positions R-9 … R-1
//   with drafts          draft_keys [3, d_index]: the draft block's raw index keys of positions R-4 … R-2, its
//                        unfinished block; hidden [1, W]: the wide hidden row of position R-1
// The trunk's attention layers have no part: at a multiple of 64 no block of theirs is unfinished, and their
// pages are referenced by whoever keeps the snapshot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache/cache_shape.h"

namespace quern {

inline constexpr int kConvHistory = 3;  // conv rows a next row reads
inline constexpr int kPleHistory = 9;
inline constexpr int kDraftKeys = 3;

struct SnapshotPart {
  std::string name;  // "delta0.M", "delta0.conv", …, "ple", "draft_keys", "hidden"
  int64_t offset = 0, bytes = 0;
  int64_t rows = 0, cols = 0;
};

std::vector<SnapshotPart> snapshot_layout(const CacheShape& shape);
int64_t snapshot_bytes(const CacheShape& shape);

struct Snapshot {
  int64_t position = 0;          // > 0, multiple of 64
  std::vector<std::byte> bytes;  // snapshot_bytes(shape)
};

}  // namespace quern
