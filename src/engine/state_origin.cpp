#include "engine/state_origin.h"

#include <fmt/format.h>
#include <gnu/libc-version.h>

#include "base/check.h"
#include "checkpoint/checkpoint_digest.h"
#include "ops/cpu/simd.h"

namespace quern {

StateOrigin state_origin(const Model& model, bool reuse_replies) {
  const Checkpoint* checkpoint = model.checkpoint();
  if (!checkpoint) throw Error("snapshot directory: a model that was not read from files has no fingerprint");
  const Device device = model.device();
  const bool one_form = device.type == DeviceType::Cpu;  // every row takes one numeric form there
  return {.model = hex(checkpoint_digest(*checkpoint)),
          .device = device_name(device),
          .simd = simd::target(),
          .kv = std::string(name(model.options().kv)),
          .drafts = model.has_drafts() ? "yes" : "no",
          .replies = one_form        ? "as prompts"
                     : reuse_replies ? "decoded"
                                     : "prompts only",
          .program = fmt::format("{} revision {}", QUERN_VERSION, kNumericRevision),
          .compiler = __VERSION__,
          .libc = gnu_get_libc_version()};
}

std::string fingerprint(const StateOrigin& o) {
  return fmt::format(
      "model {}\ndevice {}\nsimd {}\nkv {}\ndrafts {}\nreplies {}\nprogram {}\ncompiler {}\nlibc {}\n",
      o.model, o.device, o.simd, o.kv, o.drafts, o.replies, o.program, o.compiler, o.libc);
}

}  // namespace quern
