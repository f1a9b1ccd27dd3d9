#include "cache/page_pool.h"

#include <fmt/core.h>

#include "base/check.h"

namespace quern {

PagePool::PagePool(int32_t total) {
  QUERN_CHECK(total >= 0, fmt::format("a pool of {} pages", total));
  refs_.assign(static_cast<size_t>(total), 0);
  free_.reserve(refs_.size());
  for (int32_t id = total - 1; id >= 0; --id) free_.push_back(id);
}

bool PagePool::allocate(int32_t n, std::vector<int32_t>& out) {
  QUERN_CHECK(n >= 0, fmt::format("allocation of {} pages", n));
  if (n > free()) return false;
  for (int32_t i = 0; i < n; ++i) {
    const int32_t id = free_.back();
    free_.pop_back();
    refs_[id] = 1;
    out.push_back(id);
  }
  return true;
}

void PagePool::retain(int32_t id) {
  QUERN_CHECK(refs(id) > 0, fmt::format("page {} is retained but free", id));
  ++refs_[id];
}

bool PagePool::release(int32_t id) {
  QUERN_CHECK(refs(id) > 0, fmt::format("page {} is released but free", id));
  if (--refs_[id] > 0) return false;
  free_.push_back(id);
  return true;
}

int32_t PagePool::refs(int32_t id) const {
  QUERN_CHECK(id >= 0 && id < total(), fmt::format("page {} of a pool of {}", id, total()));
  return refs_[id];
}

}  // namespace quern
