// Between the files of quern eval.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model_flags.h"

namespace quern {

constexpr int64_t kEvalChunk = 512;  // prompt rows of one step

// Rows of floats on the host.
struct Rows {
  int64_t n = 0, cols = 0;
  std::vector<float> values;
  const float* row(int64_t i) const { return values.data() + i * cols; }
};

// The last min(last, rows) rows; i32 values keep their bits.
Rows download(Stream& s, Tensor t, int64_t last);
// The ids of an I32 or I64 tensor. Throws Error where one is no id of the vocabulary.
std::vector<int32_t> read_ids(const Checkpoint& file, const TensorView& t, int64_t vocab);

// log Σ exp, and KL(expected ‖ got) of two rows of logits; in double.
double log_sum_exp(const float* logits, int64_t n);
double divergence(const float* got, const float* expected, int64_t n);
// The lowest id of the largest logit among those not banned.
int32_t argmax(const float* logits, int64_t n, const std::vector<int32_t>& banned = {});

struct TextEvaluation {
  std::string ids, text;  // files, at most one of them; neither: the built-in page
  std::string against;    // another model, or empty
  int64_t context = 0;    // longest sequence; 0: as the input needs
};

// First line `nll X`: the mean negative log-likelihood per token; with `against`, how far the two models are apart.
int eval_text(const ModelFlags& flags, const TextEvaluation& what);

}  // namespace quern
