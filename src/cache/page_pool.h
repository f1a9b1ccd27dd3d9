// Which of a fixed number of ids are in use, and by how many. The ids number pages of the KV cache or slots
// of the recurrent state; the pool itself touches no tensor and no clock.
//
// Invariant: every id is either free (refs 0) or held (refs ≥ 1), and used() + free() = total(). Misuse
// (release of a free id, an id out of range) is a failed CHECK: it would hand one page to two sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace quern {

class PagePool {
 public:
  explicit PagePool(int32_t total);

  // Appends `n` ids with one reference each to `out`, or changes nothing and returns false.
  [[nodiscard]] bool allocate(int32_t n, std::vector<int32_t>& out);
  void retain(int32_t id);
  // Gives one reference back; true when that was the last.
  bool release(int32_t id);

  int32_t total() const { return static_cast<int32_t>(refs_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t used() const { return total() - free(); }
  int32_t refs(int32_t id) const;

 private:
  std::vector<int32_t> refs_;
  std::vector<int32_t> free_;  // a stack: what was freed last is given out first
};

}  // namespace quern
