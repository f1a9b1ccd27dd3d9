// What a step of the trunk reads and multiplies, for benchmarks and plans.
#pragma once

#include <cmath>
#include <cstdint>

namespace quern {

struct StepCost {
  int64_t dense_bytes = 0;   // of weights that every step reads once
  int64_t expert_bytes = 0;  // of one routed expert of one layer
  int64_t n_expert_layers = 0;
  int64_t n_experts = 0, top_k = 0;
  int64_t row_products = 0;    // multiply-adds of one row's matrix products, its top-k experts included
  int64_t logit_products = 0;  // and of a row that wants logits, on top

  // Bytes of weights that a step of n rows reads, were its experts chosen evenly at random.
  double weight_bytes(int64_t n_rows) const {
    const double missed = std::pow(1.0 - static_cast<double>(top_k) / static_cast<double>(n_experts), n_rows);
    return static_cast<double>(dense_bytes) +
           static_cast<double>(n_expert_layers * n_experts * expert_bytes) * (1 - missed);
  }
};

}  // namespace quern
