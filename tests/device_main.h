// main() of a test that runs on one device at a time: `--device=cuda` runs it there, and where there is none says so and
// exits with 77, which ctest counts as skipped. Without it: the CPU.
#pragma once

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string_view>

#include "tensor/device.h"

namespace quern {

inline Device test_device;
inline bool on_cpu() { return test_device.type == DeviceType::Cpu; }

// Gives `argument` every argument that is neither gtest's nor this one.
template <typename F>
int run_tests(int argc, char** argv, F&& argument) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    const std::string_view a = argv[i];
    if (a == "--device=cuda") {
      test_device = {DeviceType::Cuda, 0};
    } else if (a != "--device=cpu" && !argument(a)) {
      fmt::print(stderr, "unknown argument '{}'\n", a);
      return 2;
    }
  }
  if (!on_cpu() && (!kHasCuda || !std::filesystem::exists("/dev/nvidiactl"))) {
    fmt::print("skipped: no CUDA device\n");
    return 77;
  }
  return RUN_ALL_TESTS();
}
inline int run_tests(int argc, char** argv) {
  return run_tests(argc, argv, [](std::string_view) { return false; });
}

}  // namespace quern
