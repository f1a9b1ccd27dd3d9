// Which rows of the n-gram table a token reads (PLE, MODEL.md §0 "Row ids").
//
//   m_2 = (t0·a0) ^ (t1·a1),  m_n = m_{n-1} ^ (t_{n-1}·a_{n-1}),  products wrap at 64 bits
//   row of head h = (m mod vocab_h) + offset_h, the modulus non-negative (m is a signed number);
//   heads 0 … heads_per_ngram-1 use m_2, the next heads_per_ngram use m_3, …
//
// t0 is the current token, t1, t2 … the ones before it. Walking back, the first token that is missing or is
// eos, and all before it, count as eos; the current token being eos does not cut its own context.
//
// The constants are exact 64-bit integers of the checkpoint. They follow from a recipe of the config, which
// serves as a cross-check:
//
//   a_i = 2·(splitmix64(seed + 10007·p + γ·(i+1)) mod max(1, (2^63-1) / V / 2)) + 1, γ = 0x9E3779B97F4A7C15,
//   p the position of the layer in ple_layer_ids (0: there is one), V the vocabulary size;
//   vocab_h: the successive primes from vocab_base on; offset_h: their running sum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/config.h"

namespace quern {

struct NgramHash {
  int ngram = 0;
  int heads_per_ngram = 0;
  int32_t eos_id = 0;
  std::vector<int64_t> multipliers;  // [ngram]
  std::vector<int64_t> vocab;        // [heads]
  std::vector<int64_t> offset;       // [heads]
  int64_t table_rows = 0;            // padded; every row id is below the sum of vocab ≤ table_rows

  int n_heads() const { return static_cast<int>(vocab.size()); }

  // rows[h] for the token context[0], where context[i] is the token i before it; shorter than `ngram` at the
  // start of a sequence.
  void rows(std::span<const int32_t> context, std::span<int64_t> rows) const;
};

// By the recipe of the config.
NgramHash compute_ngram_hash(const Config& config);
// The constants of the checkpoint (int64 tensors, or GGUF keys), taken from it, compared with the recipe
// where the config has one, and proved to stay inside the table. Throws Error naming the tensor and the
// values.
NgramHash read_ngram_hash(Checkpoint& checkpoint, const Config& config);

}  // namespace quern
