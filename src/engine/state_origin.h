// Everything that the bits of a sequence's state depend on besides its ids. Stored states carry it as their fingerprint
// (cache/snapshot_store.h); one of another origin is not what this program would have computed, and is not used.
#pragma once

#include <string>

#include "model/model.h"

namespace quern {

// Raised whenever an order of operations changes anywhere in the model, on any device.
inline constexpr int kNumericRevision = 3;

struct StateOrigin {
  std::string model;     // digest of its config, tensors and files (checkpoint/checkpoint_digest.h)
  std::string device;    // kind, architecture and model
  std::string simd;      // target of the CPU's ops
  std::string kv;        // type of keys and values
  std::string drafts;    // whether states hold the draft block's part
  std::string replies;   // whether rows of generated tokens took the kernels of prompt rows
  std::string program;   // version and numeric revision
  std::string compiler;  // and its version: what it makes of scalar loops
  std::string libc;      // its version: exp, log, sin and cos come from there
};

// `reuse_replies`: states of generated tokens are stored too. Throws Error for a model that was not read from files.
StateOrigin state_origin(const Model& model, bool reuse_replies);

// "<name> <value>" a line, the fields in the order above.
std::string fingerprint(const StateOrigin& origin);

}  // namespace quern
