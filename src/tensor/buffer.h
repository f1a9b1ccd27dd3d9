// Owns bytes on one device: the only owner of tensor memory. Aligned to 256 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace quern {

enum class BufferKind : uint8_t {
  Plain,   // memory of the device
  Pinned,  // host memory the device can read and copy from without staging; on the CPU the same as Plain
};

class Buffer {
 public:
  Buffer() = default;
  // Zeroed. Throws Error with the size when the device has no room.
  Buffer(Device device, int64_t bytes, BufferKind kind = BufferKind::Plain);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t size() const { return size_; }
  Device device() const { return device_; }

 private:
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
  Device device_;
  BufferKind kind_ = BufferKind::Plain;
};

// A tensor and its bytes.
struct OwnedTensor {
  Buffer buffer;
  Tensor tensor;
  OwnedTensor() = default;
  OwnedTensor(Device device, DType dtype, std::initializer_list<int64_t> shape);
  explicit operator bool() const { return static_cast<bool>(tensor); }
};

namespace cuda {
std::byte* allocate(Device device, int64_t bytes, BufferKind kind);
void release(Device device, std::byte* data, BufferKind kind);
}  // namespace cuda

}  // namespace quern
