// How the engine runs: one struct, filled from flags in apps/. Pages, slots and the largest step belong to the
// model (ModelOptions).
#pragma once

#include <cstdint>
#include <string>

namespace quern {

struct EngineOptions {
  int32_t max_queue = 256;    // replies that may wait; more are refused
  double max_stall_ms = 100;  // no stream waits longer for its next token because others prefill

  // Drafts. Depth and kind follow measured acceptance and the width of the batch, up to max_drafts.
  int32_t max_drafts = 8;     // 0: none
  bool draft_block = true;    // draft with the model's own draft block (MTP) where it has one
  bool draft_lookup = true;   // draft by look-up in the request's own tokens
  bool fixed_drafts = false;  // always as many as the request allows: for tests and measurements

  // Prefix cache.
  bool prefix_cache = true;
  int64_t snapshot_ram = 4LL << 30;    // bytes of snapshots in host memory
  int64_t snapshot_interval = 16384;   // tokens between snapshots of a long prompt, a multiple of 64
  std::string snapshot_directory;      // "": no disk tier
  int64_t snapshot_disk = 64LL << 30;  // bytes of files
  // Replies enter the prefix cache too. On the CPU that is exact and always done; on CUDA generated tokens
  // take other kernels than prompt tokens, so there it gives exactness up for speed.
  bool reuse_replies = false;
};

}  // namespace quern
