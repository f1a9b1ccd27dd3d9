#include "tensor/stream.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace quern {
namespace {
constexpr int64_t kAlign = 256;
constexpr int64_t kBlock = int64_t{4} << 20;
}  // namespace

// Blocks are used in order; only the CPU ever adds one after the first.
struct Stream::Arena {
  std::vector<Buffer> blocks;
  size_t block = 0;
  int64_t used = 0;  // of blocks[block]
};

Stream::Stream(ThreadPool& pool) : Stream(Device{}, pool) {}

Stream::Stream(Device device, ThreadPool& pool)
    : device_(device), pool_(pool), arena_(std::make_unique<Arena>()) {
  if constexpr (kHasCuda) {
    if (device.type == DeviceType::Cuda) handle_ = cuda::create_stream(device);
  }
  QUERN_CHECK(kHasCuda || device.type == DeviceType::Cpu, "this build has no CUDA");
}

Stream::~Stream() {
  if constexpr (kHasCuda) {
    if (handle_) cuda::destroy_stream(device_, handle_);
  }
}

void Stream::reserve_scratch(int64_t bytes) {
  QUERN_CHECK(arena_->block == 0 && arena_->used == 0, "reserve_scratch while scratch is in use");
  int64_t have = 0;
  for (const Buffer& b : arena_->blocks) have = std::max(have, b.size());
  if (have >= bytes) return;
  arena_->blocks.clear();
  arena_->blocks.emplace_back(device_, bytes);
}

Tensor Stream::scratch(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor t(nullptr, dtype, shape);
  const int64_t need = (t.bytes() + kAlign - 1) / kAlign * kAlign;
  Arena& a = *arena_;
  while (a.block < a.blocks.size() && a.used + need > a.blocks[a.block].size()) {
    ++a.block;
    a.used = 0;
  }
  if (a.block == a.blocks.size()) {
    QUERN_CHECK(device_.type == DeviceType::Cpu,
                "scratch of the CUDA stream is used up: reserve_scratch was too small");
    a.blocks.emplace_back(device_, std::max(need, kBlock));
  }
  t.data = a.blocks[a.block].data() + a.used;
  a.used += need;
  return t;
}

void Stream::copy(void* to, const void* from, int64_t bytes) {
  if (bytes == 0) return;
  if constexpr (kHasCuda) {
    if (handle_) return cuda::copy(handle_, to, from, bytes);
  }
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
void Stream::upload(void* to_device, const void* from_host, int64_t bytes) {
  copy(to_device, from_host, bytes);
}
void Stream::download(void* to_host, const void* from_device, int64_t bytes) {
  copy(to_host, from_device, bytes);
}

void Stream::zero(void* on_device, int64_t bytes) {
  if (bytes == 0) return;
  if constexpr (kHasCuda) {
    if (handle_) return cuda::zero(handle_, on_device, bytes);
  }
  std::memset(on_device, 0, static_cast<size_t>(bytes));
}

void Stream::synchronize() {
  if constexpr (kHasCuda) {
    if (handle_) cuda::synchronize(handle_);
  }
}

ScratchScope::ScratchScope(Stream& s) : stream_(s), block_(s.arena_->block), used_(s.arena_->used) {}
ScratchScope::~ScratchScope() {
  stream_.arena_->block = block_;
  stream_.arena_->used = used_;
}

}  // namespace quern
