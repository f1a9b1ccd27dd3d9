// The sizes of everything a sequence carries, as the cache layer needs them; the model fills it from its
// Config.
#pragma once

#include <cstdint>

#include "ops/delta_net.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace quern {

struct CacheShape {
  int n_delta_layers = 0;
  DeltaNetShape delta;
  int n_sparse_layers = 0;  // of the trunk
  bool drafts = false;      // the draft (MTP) block has caches as well
  int n_kv = 0, d_head = 0, d_index = 0;
  int64_t wide = 0;  // S·H: width of a PLE conv row and of a wide hidden row
  DType kv = DType::BF16;

  int n_attention_layers() const { return n_sparse_layers + (drafts ? 1 : 0); }
  int draft_layer() const { return n_sparse_layers; }  // its index among the attention layers
};

}  // namespace quern
