// The memory that this process has taken.
#pragma once

#include <cstdint>
#include <string>

#include "tensor/device.h"

namespace quern {

struct Footprint {
  int64_t ram =
      0;  // bytes of RAM, the most so far: pages of mapped files among them, which the system can drop
  int64_t device = 0;  // bytes in use on the GPU, by all programs; 0 on the CPU
};
Footprint footprint(Device device);
// "95 MB of RAM", "1.2 GB of RAM, 97.5 GB on the GPU"
std::string describe(const Footprint& footprint);

}  // namespace quern
