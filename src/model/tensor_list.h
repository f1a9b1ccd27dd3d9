// Every tensor a checkpoint of a given geometry has, under its logical name (checkpoint/checkpoint.h), in the
// order of the layers; experts fused, the n-gram table whole. What `quern synth` writes and what sizes the
// memory plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config.h"

namespace quern {

enum class TensorGroup : uint8_t {
  Embedding,  // embed_tokens: one row a token
  Head,       // lm_head
  Dense,      // read whole for every token
  Expert,     // the routed experts
  Table,      // the n-gram table
  Constant,   // int64 constants of the n-gram hash
  Mtp,        // the draft block, its experts apart
  MtpExpert,
};

struct ListedTensor {
  std::string name;
  std::vector<int64_t> shape;
  TensorGroup group = TensorGroup::Dense;
  int64_t elements() const;
};

std::vector<ListedTensor> list_tensors(const Config& config);

}  // namespace quern
