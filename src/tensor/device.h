// Where bytes live and work runs. The one place that knows whether this build has CUDA kernels.
#pragma once

#include <cstdint>
#include <string>

namespace quern {

enum class DeviceType : uint8_t { Cpu, Cuda };

struct Device {
  DeviceType type = DeviceType::Cpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

#ifdef QUERN_WITH_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// "cpu"; "cuda sm_90 NVIDIA H200, toolkit 12.8": all that a kernel's bits could depend on.
std::string device_name(Device device);

namespace cuda {
std::string device_name(Device device);
}

}  // namespace quern
