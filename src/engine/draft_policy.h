// How deep to draft and with what, from measured acceptance and the measured cost of a step.
//
// With a(i) the measured chance that draft i is accepted where the i - 1 before it were, a step of depth d gives
//   tokens(d) = 1 + Σ_{i ≤ d} Π_{j ≤ i} a(j)
// and costs, among B sequences,
//   seconds(d) = base + B · row · (1 + d) + passes(d) · pass
// where passes are the draft block's, none for look-up. The depth that gives the most tokens a second is taken,
// so drafts end by themselves where the batch is wide enough to fill the machine. A source that was not
// tried for kProbeSteps steps is tried once with one draft.
#pragma once

#include <array>
#include <cstdint>

#include "engine/cost_model.h"
#include "ops/batch_view.h"

namespace quern {

enum class DraftSource : uint8_t { None, Block, Lookup, Forced };

// Acceptance by source and position, forgetting slowly.
class Acceptance {
 public:
  // `match` is the length of a look-up's match: longer ones are kept apart.
  static int bucket(DraftSource source, int match);
  void observe(int bucket, int drafted, int accepted);
  double chance(int bucket, int position) const;
  void start_from(const Acceptance& other) { *this = other; }

  static constexpr int kBuckets = 5;  // the draft block; look-up by match 3-4, 5-8, 9-16, 17+

 private:
  struct Rate {
    double tried = 0, accepted = 0;
  };
  std::array<std::array<Rate, kMaxDrafts>, kBuckets> rates_{};
};

struct DraftCost {
  CostModel step;
  double pass = 0;        // seconds of a pass of the draft block
  int64_t sequences = 1;  // in the step
  int64_t prefill_rows = 0;
};

struct DraftChoice {
  int depth = 0;
  double tokens_per_second = 0;
};

// The best depth up to `most` for one source.
DraftChoice best_depth(const Acceptance& acceptance, int bucket, bool uses_passes, int most,
                       const DraftCost& cost);

inline constexpr int64_t kProbeSteps = 64;

}  // namespace quern
