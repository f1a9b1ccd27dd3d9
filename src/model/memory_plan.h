// What a model will hold in memory and read for each token, from its config and the bytes of its files, before
// anything is loaded. All sizes in bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/checkpoint.h"
#include "model/config.h"
#include "model/tensor_list.h"
#include "tensor/device.h"

namespace quern {

struct MemoryPlan {
  // As stored in the files.
  int64_t embedding = 0, head = 0, dense = 0, experts = 0, table = 0, mtp = 0, mtp_experts = 0, vision = 0;
  int64_t weights() const { return embedding + head + dense + experts + table + mtp + mtp_experts + vision; }

  int64_t max_positions = 0;  // the model's limit of a context

  // Per sequence.
  int64_t kv_per_token = 0;     // K and V of all sparse layers
  int64_t index_per_token = 0;  // pooled index keys, float32, a share of one per block
  int64_t delta_state = 0;      // M of all delta-net layers, float32
  int64_t conv_state = 0;       // rows the convolutions look back on, float32
  int64_t state() const { return delta_state + conv_state; }
  int64_t page(int tokens = 64) const { return (kv_per_token + index_per_token) * tokens; }
  int64_t sequence(int64_t context) const { return state() + (context + 63) / 64 * page(); }

  // Read for one token of one sequence at a context of `n` tokens.
  int64_t weights_per_token = 0;  // dense, head, the chosen experts, one embedding row, the n-gram rows
  int64_t table_per_token = 0;    // of which n-gram rows
  int64_t experts_per_token = 0;  // of which experts
  int64_t context_per_token(const Config& config, int64_t n) const;  // the selected K and V, all index keys
};

// A machine, and what of the plan it must hold there.
struct Machine {
  DeviceType device = DeviceType::Cpu;
  int64_t ram = 0, vram = 0;
};
struct Fit {
  int64_t ram_held = 0;    // on the CPU pages and state; on CUDA the n-gram table, pinned
  int64_t ram_mapped = 0;  // on the CPU: weights read for tokens, which the kernel may drop and read again
  int64_t vram_held = 0;   // weights but the n-gram table, pages, state, and the step's own memory
  // One line that says what is short and by how much, and what would fit; empty where all that must be held fits.
  std::string refusal;
  int64_t largest_context = 0;  // within the model's limit, that would fit so many sequences; 0: none would
};
// What CUDA's context, a step's activations and its scratch take at most.
inline constexpr int64_t kCudaStepBytes = int64_t{3} << 29;
Fit fit(const MemoryPlan& plan, const Machine& machine, int64_t context, int64_t sequences);

// Which group a tensor belongs to, by its logical name; of the vision tower: false.
bool group_of(std::string_view name, TensorGroup& group);
// kv_bytes: of one stored K or V element (2 for BF16). Without a checkpoint only what a sequence takes.
MemoryPlan plan_sequences(const Config& config, int kv_bytes);
MemoryPlan plan_memory(const Checkpoint& checkpoint, const Config& config, int kv_bytes);

}  // namespace quern
