#include "footprint.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "tensor/random_fill.h"

namespace quern {

Footprint footprint(Device device) {
  Footprint f;
  struct rusage usage {};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) f.ram = int64_t{usage.ru_maxrss} * 1024;
  if (device.type == DeviceType::Cuda) {
    const DeviceMemory memory = device_memory(device);
    f.device = memory.total - memory.free;
  }
  return f;
}

std::string describe(const Footprint& f) {
  const auto amount = [](int64_t bytes) {
    const auto b = static_cast<double>(bytes);
    return bytes < 1'000'000'000 ? fmt::format("{:.0f} MB", b * 1e-6) : fmt::format("{:.1f} GB", b * 1e-9);
  };
  return amount(f.ram) + " of RAM" + (f.device > 0 ? ", " + amount(f.device) + " on the GPU" : "");
}

}  // namespace quern
