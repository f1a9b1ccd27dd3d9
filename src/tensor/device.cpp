#include "tensor/device.h"

namespace quern {

std::string device_name(Device device) {
  if constexpr (kHasCuda) {
    if (device.type == DeviceType::Cuda) return cuda::device_name(device);
  }
  return "cpu";
}

}  // namespace quern
