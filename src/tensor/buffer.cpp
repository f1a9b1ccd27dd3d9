#include "tensor/buffer.h"

#include <fmt/core.h>
#include <sys/mman.h>

#include <utility>

#include "base/check.h"

namespace quern {
namespace {

// Anonymous pages: zeroed by the kernel on first touch, so a large pool costs what is used of it.
std::byte* allocate_host(int64_t bytes) {
  void* p =
      ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) throw Error(fmt::format("memory: cannot allocate {} bytes on the host", bytes));
  if (bytes >= (int64_t{8} << 20)) ::madvise(p, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}

}  // namespace

Buffer::Buffer(Device device, int64_t bytes, BufferKind kind) : size_(bytes), device_(device), kind_(kind) {
  QUERN_CHECK(bytes >= 0, "negative buffer size");
  if (bytes == 0) return;
  if constexpr (kHasCuda) {
    if (device.type == DeviceType::Cuda) {
      data_ = cuda::allocate(device, bytes, kind);
      return;
    }
  }
  QUERN_CHECK(device.type == DeviceType::Cpu, "this build has no CUDA");
  data_ = allocate_host(bytes);
}

Buffer::~Buffer() {
  if (!data_) return;
  if constexpr (kHasCuda) {
    if (device_.type == DeviceType::Cuda) {
      cuda::release(device_, data_, kind_);
      return;
    }
  }
  ::munmap(data_, static_cast<size_t>(size_));
}

Buffer::Buffer(Buffer&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)),
      size_(std::exchange(o.size_, 0)),
      device_(o.device_),
      kind_(o.kind_) {}

Buffer& Buffer::operator=(Buffer&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(size_, o.size_);
  std::swap(device_, o.device_);
  std::swap(kind_, o.kind_);
  return *this;
}

OwnedTensor::OwnedTensor(Device device, DType dtype, std::initializer_list<int64_t> shape)
    : tensor(nullptr, dtype, shape) {
  buffer = Buffer(device, tensor.bytes());
  tensor.data = buffer.data();
}

}  // namespace quern
