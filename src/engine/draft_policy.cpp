#include "engine/draft_policy.h"

#include <algorithm>

namespace quern {
namespace {

constexpr double kForget = 0.97;
// What is believed before anything was measured, and with what weight.
constexpr double kPriorTried = 2;
constexpr std::array<double, Acceptance::kBuckets> kPrior = {0.6, 0.4, 0.55, 0.7, 0.8};

}  // namespace

int Acceptance::bucket(DraftSource source, int match) {
  if (source != DraftSource::Lookup) return 0;
  return match <= 4 ? 1 : match <= 8 ? 2 : match <= 16 ? 3 : 4;
}

void Acceptance::observe(int bucket, int drafted, int accepted) {
  // Positions behind the first rejection were not tried.
  for (int i = 0; i < std::min(drafted, accepted + 1); ++i) {
    Rate& r = rates_[bucket][i];
    r.tried = r.tried * kForget + 1;
    r.accepted = r.accepted * kForget + (i < accepted ? 1 : 0);
  }
}

double Acceptance::chance(int bucket, int position) const {
  // A deeper position without experience is taken to be like the one before it.
  double prior = kPrior[bucket];
  for (int i = 0; i <= position; ++i) {
    const Rate& r = rates_[bucket][i];
    prior = (r.accepted + prior * kPriorTried) / (r.tried + kPriorTried);
  }
  return prior;
}

DraftChoice best_depth(const Acceptance& acceptance, int bucket, bool uses_passes, int most,
                       const DraftCost& cost) {
  DraftChoice best;
  double tokens = 1, reached = 1;
  for (int d = 0; d <= most; ++d) {
    if (d > 0) {
      reached *= acceptance.chance(bucket, d - 1);
      tokens += reached;
    }
    const double seconds =
        cost.step.seconds(cost.sequences * (1 + d), cost.prefill_rows) + (uses_passes ? d * cost.pass : 0);
    const double rate = tokens / std::max(seconds, 1e-9);
    // Before anything was measured all steps cost the same and the deepest would win: begin with a few.
    if (cost.step.base <= 0 && d > 3) break;
    if (rate > best.tokens_per_second * (d > 0 ? 1.02 : 1)) best = {d, rate};
  }
  return best;
}

}  // namespace quern
