// Where a reply stands in its grammar (text/grammar.h): before it, in it, or without one. Copies are cheap and
// independent, so rows behind drafts walk ahead on a copy.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/request.h"
#include "text/grammar.h"

namespace quern {

class GrammarPlace {
 public:
  GrammarPlace() = default;
  explicit GrammarPlace(const Request& request);

  bool active() const { return matcher_.has_value(); }    // whether the next id is bound by the grammar
  bool awaited() const { return grammar_ && !matcher_; }  // whether it is still to begin
  // The reply's next id. False: the grammar does not allow it, and nothing has changed.
  bool take(int32_t id);
  // Bits of the ids that take would take; all of `bits` is written.
  void fill_mask(std::span<uint32_t> bits) const { matcher_->fill_mask(bits); }

 private:
  std::shared_ptr<const Grammar> grammar_;
  int32_t after_id_ = -1;
  std::optional<GrammarMatcher> matcher_;
};

}  // namespace quern
