// What tells a model's files from every other model's, in about a second however large they are.
#pragma once

#include "base/digest.h"
#include "checkpoint/checkpoint.h"

namespace quern {

inline constexpr int64_t kDigestStretches = 128, kDigestStretch = 4096;  // of a file; bytes of one

// XXH3-128 of, in this order,
//   the container's kind, and config.json
//   per file    its size; all bytes before its first tensor (names, types, shapes, offsets, GGUF metadata); and of the
//               rest kDigestStretches stretches of kDigestStretch bytes, evenly spread from its first byte to its last
//               (all of it where that is no more)
//   per tensor  logical name, type, form, shape, file, offset, length
// A trained, merged or quantised model differs from its parent in every stretch, or almost.
Digest sampled_digest(const Checkpoint& checkpoint);

// The same with the times at which each file's content and inode changed last. A change of a few bytes that the stretches
// miss has changed the inode's time, which no program can set: another model is never taken for this one. The price is
// that a model copied to another place counts as another one.
Digest checkpoint_digest(const Checkpoint& checkpoint);

}  // namespace quern
