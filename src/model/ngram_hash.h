// Which rows of the n-gram table a token reads (PLE, MODEL.md §0 "Row ids").
//
//   m2 = (t0·a0) ^ (t1·a1),  m3 = m2 ^ (t2·a2),  products wrap at 64 bits
//   row of head h = (m mod vocab_h) + offset_h, the modulus non-negative (m is a signed number);
//   the first half of the heads use m2, the others m3
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

#include <array>
#include <cstdint>
#include <span>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "ops/ple.h"

namespace quern {

struct NgramTable {
  NgramHash hash;
  int64_t rows = 0;  // padded; every row id is below the sum of vocab ≤ rows
};

// By the recipe of the config.
NgramTable compute_ngram_table(const Config& config);
// The constants of the checkpoint (int64 tensors, or GGUF keys), taken from it, compared with the recipe
// where the config has one, and proved to stay inside the table. Throws Error naming the tensor and the
// values.
NgramTable read_ngram_table(Checkpoint& checkpoint, const Config& config);

// What the op ple_rows computes, on the host for one token: row ids of all heads. context[i] is the token i
// before the current one, context[0]; shorter than 3 at the start of a sequence.
void ngram_rows(const NgramHash& hash, std::span<const int32_t> context, std::span<int64_t> rows);

}  // namespace quern
