// Which of this build's kernels a device runs.
#pragma once

#include "tensor/device.h"

namespace quern::cuda {

// What they were compiled for: 80, 86, 89, 90 (90a), 100 or 120; 0 where none of them run there. A device runs older ones
// where a build has no others for it.
int compiled_for(Device device);

}  // namespace quern::cuda
