#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace quern {
namespace {

constexpr double kForget = 0.98;  // an observation counts half after 34 more
constexpr double kSpreads = 3, kLargestExcess = 1;

// Solves the n×n system restricted to the coefficients `use`; the others are 0. False if it is singular.
bool solve(const std::array<std::array<double, 3>, 3>& xx, const std::array<double, 3>& xy,
           const std::array<bool, 3>& use, std::array<double, 3>& c) {
  std::array<std::array<double, 4>, 3> a{};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) a[i][j] = use[i] && use[j] ? xx[i][j] : (i == j ? 1.0 : 0.0);
    // A small ridge on the slopes: where the number of rows never varied, base and slope cannot be told apart, and the
    // cost is taken to be the step's own. So more rows are tried, and the slope is learnt.
    if (use[i] && i > 0) a[i][i] *= 1 + 1e-3;
    a[i][3] = use[i] ? xy[i] : 0;
  }
  for (int p = 0; p < 3; ++p) {
    int best = p;
    for (int i = p + 1; i < 3; ++i)
      if (std::fabs(a[i][p]) > std::fabs(a[best][p])) best = i;
    std::swap(a[p], a[best]);
    if (std::fabs(a[p][p]) < 1e-300) return false;
    for (int i = 0; i < 3; ++i) {
      if (i == p) continue;
      const double f = a[i][p] / a[p][p];
      for (int j = p; j < 4; ++j) a[i][j] -= f * a[p][j];
    }
  }
  for (int i = 0; i < 3; ++i) c[i] = a[i][3] / a[i][i];
  return true;
}

}  // namespace

double CostModel::at_most(int64_t decode_rows, int64_t prefill_rows) const {
  if (static_cast<double>(prefill_rows) > 2 * tried) return HUGE_VAL;
  const std::array<double, 3> x = {1, static_cast<double>(decode_rows), static_cast<double>(prefill_rows)};
  double leverage = 0;
  for (int i = 0; i < 3; ++i)
    for (int j = 0; j < 3; ++j) leverage += x[i] * inverse[i][j] * x[j];
  const double spread = mean + kSpreads * deviation * std::sqrt(1 + std::max(leverage, 0.0));
  return (1 + std::max(spread, 0.0)) * seconds(decode_rows, prefill_rows);
}

void CostMeter::observe(int64_t decode_rows, int64_t prefill_rows, double seconds) {
  if (const double expected = model_.seconds(decode_rows, prefill_rows); expected > 0) {
    const double e = std::min(seconds / expected - 1, kLargestExcess);
    n_ = kForget * n_ + 1;
    excess_ = kForget * excess_ + e;
    excess2_ = kForget * excess2_ + e * e;
  }
  const std::array<double, 3> x = {1, static_cast<double>(decode_rows), static_cast<double>(prefill_rows)};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < 3; ++j) xx_[i][j] = kForget * xx_[i][j] + x[i] * x[j];
    xy_[i] = kForget * xy_[i] + x[i] * seconds;
  }
  model_.tried = std::max({kForget * model_.tried, static_cast<double>(prefill_rows), double{kPageTokens}});
  fit();
}

void CostMeter::fit() {
  std::array<bool, 3> use = {true, xx_[1][1] > 0, xx_[2][2] > 0};
  std::array<double, 3> c{};
  // A negative coefficient is noise: drop the most negative one and fit the others again.
  for (int round = 0; round < 3; ++round) {
    if (!solve(xx_, xy_, use, c)) return;
    const auto worst = std::min_element(c.begin(), c.end()) - c.begin();
    if (c[worst] >= 0) break;
    use[worst] = false;
  }
  model_.base = std::max(c[0], 0.0);
  model_.decode_row = std::max(c[1], 0.0);
  model_.prefill_row = std::max(c[2], 0.0);
  // What a slope that was dropped may be is as uncertain as the others'.
  use = {true, xx_[1][1] > 0, xx_[2][2] > 0};
  for (int k = 0; k < 3; ++k) {
    std::array<double, 3> unit{}, column{};
    unit[k] = 1;
    if (use[k] && solve(xx_, unit, use, column))
      for (int i = 0; i < 3; ++i) model_.inverse[i][k] = use[i] ? column[i] : 0;
  }
  if (n_ == 0) return;
  model_.mean = excess_ / n_;
  model_.deviation = std::sqrt(std::max(excess2_ / n_ - model_.mean * model_.mean, 0.0));
}

}  // namespace quern
