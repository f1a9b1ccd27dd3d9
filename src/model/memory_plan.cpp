#include "model/memory_plan.h"

#include <fmt/core.h>

#include <algorithm>

namespace quern {

bool group_of(std::string_view name, TensorGroup& group) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (name.starts_with("visual.")) return false;
  const bool mtp = name.starts_with("mtp.");
  if (has(".mlp.experts."))
    group = mtp ? TensorGroup::MtpExpert : TensorGroup::Expert;
  else if (mtp)
    group = TensorGroup::Mtp;
  else if (has(".ngram_embedding."))
    group = TensorGroup::Table;
  else if (has(".ple_embedding."))
    group = TensorGroup::Constant;
  else if (name.starts_with("embed_tokens."))
    group = TensorGroup::Embedding;
  else if (name.starts_with("lm_head."))
    group = TensorGroup::Head;
  else
    group = TensorGroup::Dense;
  return true;
}

MemoryPlan plan_sequences(const Config& c, int kv_bytes) {
  MemoryPlan p;
  p.max_positions = c.max_positions;
  const int64_t sparse = c.n_sparse_layers(), delta = c.n_delta_layers();
  p.kv_per_token = sparse * 2 * c.n_kv_heads * c.d_head * kv_bytes;
  p.index_per_token = sparse * c.indexer.d_head * int64_t{4} / c.indexer.block_ratio;
  p.delta_state = delta * c.delta.n_value_heads * c.delta.d_key * c.delta.d_value * int64_t{4};
  const int64_t raw_keys = sparse * (c.indexer.block_ratio - 1) * c.indexer.d_head;
  const int64_t ple_rows = int64_t{c.ple.dilation} * (c.ple.conv - 1) * c.wide();
  p.conv_state = (delta * (c.delta.conv - 1) * c.delta.qkv_width() + ple_rows + raw_keys) * 4;
  return p;
}

MemoryPlan plan_memory(const Checkpoint& checkpoint, const Config& c, int kv_bytes) {
  MemoryPlan p = plan_sequences(c, kv_bytes);
  int64_t table_rows = 0;
  for (const TensorView& t : checkpoint.tensors()) {
    const auto bytes = static_cast<int64_t>(t.bytes.size());
    TensorGroup group;
    if (!group_of(t.name, group)) {
      p.vision += bytes;
      continue;
    }
    switch (group) {
      case TensorGroup::Embedding:
        p.embedding += bytes;
        break;
      case TensorGroup::Head:
        p.head += bytes;
        break;
      case TensorGroup::Dense:
      case TensorGroup::Constant:
        p.dense += bytes;
        break;
      case TensorGroup::Expert:
        p.experts += bytes;
        break;
      case TensorGroup::Table:
        p.table += bytes;
        if (t.shape.size() == 2) table_rows += t.shape[0];
        break;
      case TensorGroup::Mtp:
        p.mtp += bytes;
        break;
      case TensorGroup::MtpExpert:
        p.mtp_experts += bytes;
        break;
    }
  }
  p.table_per_token = table_rows > 0 ? p.table / table_rows * c.ple.n_heads() : 0;
  p.experts_per_token = p.experts / c.n_experts * c.top_k;
  const int64_t head = p.head > 0 ? p.head : p.embedding;  // a tied head is read whole too
  p.weights_per_token = p.dense + head + p.experts_per_token + p.embedding / c.vocab + p.table_per_token;
  return p;
}

int64_t MemoryPlan::context_per_token(const Config& c, int64_t n) const {
  const int64_t selected = std::min<int64_t>(n, c.indexer.budget + c.indexer.block_ratio - 1);
  return selected * kv_per_token + n * index_per_token;
}

Fit fit(const MemoryPlan& p, const Machine& machine, int64_t context, int64_t sequences) {
  const auto gib = [](int64_t bytes) {
    return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / (1 << 30));
  };
  const bool cuda = machine.device == DeviceType::Cuda;
  const int64_t weights = p.weights() - p.table, caches = sequences * p.sequence(context);
  Fit f;
  f.ram_held = cuda ? p.table : caches;
  f.ram_mapped = cuda ? 0 : weights;
  f.vram_held = cuda ? weights + kCudaStepBytes + caches : 0;

  const int64_t fixed = cuda ? weights + kCudaStepBytes : 0,
                room = (cuda ? machine.vram : machine.ram) - fixed;
  const int64_t pages = room / sequences - p.state();
  if (pages >= p.page()) f.largest_context = std::min(pages / p.page() * 64, p.max_positions);
  if (cuda && p.table > machine.ram) {
    f.refusal = fmt::format(
        "the n-gram table wants {} of RAM, {} are there: {} short; --device cpu reads it from the files",
        gib(p.table), gib(machine.ram), gib(p.table - machine.ram));
    f.largest_context = 0;
  } else if (cuda && room < 0) {
    f.refusal = fmt::format(
        "the weights and a step want {} of GPU memory, {} are there: {} short; a smaller type (quern "
        "convert) or "
        "--device cpu fits",
        gib(fixed), gib(machine.vram), gib(-room));
  } else if (caches > room) {
    const char* fewer =
        room - p.state() >= p.page() ? "fewer sequences fit" : "not even one sequence of 64 tokens fits";
    f.refusal = fmt::format("{} sequence{} of {} tokens want {} of {}, {} are left for them: {} short; {}",
                            sequences, sequences == 1 ? "" : "s", context, gib(caches),
                            cuda ? "GPU memory" : "RAM", gib(room), gib(caches - room),
                            f.largest_context > 0 ? fmt::format("--ctx {} fits", f.largest_context) : fewer);
  }
  return f;
}

}  // namespace quern
