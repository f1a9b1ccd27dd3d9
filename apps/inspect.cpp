// quern inspect: what a model's files hold; with --plan, what will lie where and what each token reads.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "commands.h"
#include "model/config.h"
#include "model/memory_plan.h"
#include "model_flags.h"
#include "progress_bar.h"
#include "tensor/random_fill.h"

namespace quern {
namespace {

void print_config(const Config& c) {
  const auto row = [](const char* what, const std::string& value) {
    fmt::print("  {:<17} {}\n", what, value);
  };
  fmt::print("config\n");
  row("layers", fmt::format("{}: {} delta net, {} sparse attention", c.n_layers, c.n_delta_layers(),
                            c.n_sparse_layers()));
  row("width", fmt::format("{} × {} streams, mixers of rank {}", c.d_model, c.streams, c.hc_rank));
  row("vocabulary", fmt::format("{}{}", c.vocab, c.tied_embeddings ? ", head tied to the embedding" : ""));
  row("attention", fmt::format("{} heads, {} of keys and values, {} wide, {} rotary, theta {:g}", c.n_heads,
                               c.n_kv_heads, c.d_head, c.d_rope, c.rope_theta));
  row("indexer", fmt::format("{} heads of {}, budget {} tokens in blocks of {}", c.indexer.n_heads,
                             c.indexer.d_head, c.indexer.budget, c.indexer.block_ratio));
  row("delta net", fmt::format("{} key and {} value heads, {} × {}, convolution of {}, {} gate",
                               c.delta.n_key_heads, c.delta.n_value_heads, c.delta.d_key, c.delta.d_value,
                               c.delta.conv, c.delta.gate == OutputGate::Sigmoid ? "sigmoid" : "silu"));
  row("experts",
      fmt::format("{}, {} a token, {} wide; shared {} wide", c.n_experts, c.top_k, c.d_expert, c.d_shared));
  row("n-grams", fmt::format("layer {}, {} heads of {}, table base {}, end of text {}", c.ple.layer,
                             c.ple.n_heads(), c.ple.d_row, c.ple.vocab_base, c.ple.eos_id));
  row("context", fmt::format("{} tokens", c.max_positions));
  row("draft block", c.mtp_layers ? "yes" : "no");
  row("vision", c.vision ? fmt::format("{} layers of {}", c.vision->n_layers, c.vision->d_model) : "no");
  if (c.quantization.kind != Quantization::None)
    row("quantisation", c.quantization.kind == Quantization::Fp8Block ? "FP8, scales of 128 × 128" : "ModelOpt");
}

// The name with every number of it as *, so that the layers and experts of one kind fall together.
std::string pattern_of(const std::string& name) {
  std::string out;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool digit = name[i] >= '0' && name[i] <= '9';
    const bool starts =
        i == 0 || name[i - 1] == '.' || name[i - 1] == '_' || (digit && !out.empty() && out.back() == '*');
    if (!digit || !starts)
      out += name[i];
    else if (out.empty() || out.back() != '*')
      out += '*';
  }
  return out;
}

void print_tensors(const Checkpoint& checkpoint, bool each) {
  if (each) {
    fmt::print("tensors\n");
    for (const TensorView& t : checkpoint.tensors())
      fmt::print("  {:<8} {:<20} {:>12}  {}\n", name(t.dtype), t.shape_text(), t.bytes.size(),
                 one_line(t.file_name));
    return;
  }
  struct Kind {
    int64_t count = 0, bytes = 0;
  };
  std::vector<std::pair<std::string, Kind>> kinds;  // in file order
  std::map<std::string, size_t> at;
  for (const TensorView& t : checkpoint.tensors()) {
    const std::string key =
        fmt::format("{:<8} {:<20} {}", name(t.dtype), t.shape_text(), one_line(pattern_of(t.file_name)));
    const auto [i, is_new] = at.emplace(key, kinds.size());
    if (is_new) kinds.push_back({key, {}});
    kinds[i->second].second.count += 1;
    kinds[i->second].second.bytes += static_cast<int64_t>(t.bytes.size());
  }
  fmt::print("tensors ({}; --tensors lists each)\n", checkpoint.tensors().size());
  for (const auto& [key, kind] : kinds)
    fmt::print("  {:>6} × {:>11}  {}\n", kind.count, bytes_text(kind.bytes / kind.count), key);
}

void print_formats(const Checkpoint& checkpoint) {
  std::map<std::string, std::pair<int64_t, int64_t>> formats;  // tensors, bytes
  int64_t total = 0;
  for (const TensorView& t : checkpoint.tensors()) {
    auto& f = formats[std::string(name(t.dtype))];
    f.first += 1;
    f.second += static_cast<int64_t>(t.bytes.size());
    total += static_cast<int64_t>(t.bytes.size());
  }
  fmt::print("formats\n");
  for (const auto& [format, f] : formats)
    fmt::print("  {:<8} {:>6} tensors {:>12}\n", format, f.first, bytes_text(f.second));
  fmt::print("  {:<8} {:>6} tensors {:>12} in {} file{}\n", "all", checkpoint.tensors().size(),
             bytes_text(total), checkpoint.files().size(), checkpoint.files().size() == 1 ? "" : "s");
}

// Returns whether the machine can hold it.
bool print_plan(const MemoryPlan& p, const Config& c, const Machine& machine, int64_t context,
                int64_t sequences, const std::string& kv) {
  const bool cuda = machine.device == DeviceType::Cuda;
  const char* place = cuda ? "on the GPU" : "mapped";
  const auto row = [](const char* what, int64_t bytes, const std::string& where) {
    fmt::print("  {:<22} {:>12}  {}\n", what, bytes_text(bytes), where);
  };
  fmt::print("plan ({}, {} keys and values, {} sequence{} of {} tokens)\n", cuda ? "CUDA" : "CPU", kv,
             sequences, sequences == 1 ? "" : "s", context);
  row("dense weights", p.dense, fmt::format("{}, read whole for every token", place));
  row("experts", p.experts, fmt::format("{}, {} of {} read a token", place, c.top_k, c.n_experts));
  row("embedding", p.embedding, fmt::format("{}, one row a token", place));
  if (p.head > 0) row("head", p.head, fmt::format("{}, read whole for every token", place));
  row("n-gram table", p.table,
      cuda ? fmt::format("in RAM, pinned, {} rows a token over the bus", c.ple.n_heads())
           : fmt::format("mapped, {} rows a token; never resident as a whole", c.ple.n_heads()));
  if (p.mtp + p.mtp_experts > 0)
    row("draft block", p.mtp + p.mtp_experts, fmt::format("{}, read when drafting", place));
  if (p.vision > 0) row("vision tower", p.vision, fmt::format("{}, read for images", place));
  fmt::print("one sequence\n");
  row("keys and values", p.kv_per_token, "a token");
  row("index keys", p.index_per_token, "a token, float32");
  row("page of 64 tokens", p.page(), "");
  row("delta net and rows", p.state(), "whatever the length");
  row("at this context", p.sequence(context), "");
  fmt::print("reads for one token\n");
  row("weights", p.weights_per_token,
      fmt::format("experts {}, n-gram rows {}", bytes_text(p.experts_per_token),
                  bytes_text(p.table_per_token)));
  row("state", p.state(), "and written back");
  row("keys", p.context_per_token(c, context), "at this context");
  const Fit f = fit(p, machine, context, sequences);
  fmt::print("memory\n");
  if (cuda) {
    row("GPU holds", f.vram_held,
        fmt::format("weights, {} for a step, pages and state", bytes_text(kCudaStepBytes)));
    row("GPU has", machine.vram, "");
  }
  row("RAM holds", f.ram_held, cuda ? "the n-gram table" : "pages and state");
  if (!cuda)
    row("RAM caches", f.ram_mapped, "mapped weights without the n-gram table, dropped where RAM is short");
  row("RAM is", machine.ram, "");
  if (!f.refusal.empty()) {
    fmt::print("does not fit: {}\n", f.refusal);
    return false;
  }
  fmt::print("fits; the longest context for so many sequences is {} tokens\n", f.largest_context);
  if (const int64_t left = machine.ram - f.ram_held; f.ram_mapped > left)
    fmt::print("but {} of the mapped weights do not stay in RAM: up to {} a token come from the disk\n",
               bytes_text(f.ram_mapped - left),
               bytes_text(std::min(p.weights_per_token, f.ram_mapped - left)));
  return true;
}

}  // namespace

int inspect_main(int argc, char** argv) {
  CLI::App app("Prints a model's config, its tensors, their formats and bytes.");
  std::string model, kv = "bf16";
  bool plan = false, each = false;
  int64_t context = 0, sequences = 1;
  uint64_t ram = 0, vram = 0;
  std::string device = "cpu";
  app.add_option("MODEL", model, "a model's folder or file")->required();
  app.add_flag("--plan", plan, "what will lie where, and what each token reads");
  app.add_flag("--tensors", each, "list every tensor by name");
  app.add_option("--ctx", context, "tokens of context of the plan (default: the model's limit)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
  app.add_option("--sequences", sequences, "of the plan, side by side")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  app.add_option("--device", device, "of the plan: cpu or cuda[:i]")
      ->capture_default_str()
      ->check(device_fault);
  app.add_option("--ram", ram, "memory of the plan's machine, as in 64GiB (default: this machine's)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--vram", vram, "memory of its GPU (default: what this machine's has)")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--kv", kv, "type of keys and values of the plan")->check(kv_fault)->capture_default_str();
  if (const auto code = parse_options(app, argc, argv)) return *code;

  const auto checkpoint = Checkpoint::open(model);
  const bool has_config = checkpoint->kind() == Checkpoint::Kind::Gguf || !checkpoint->config().is_null();
  fmt::print("{}: {}\n", model, checkpoint->kind() == Checkpoint::Kind::Gguf ? "GGUF" : "safetensors");
  if (has_config || plan) {
    const Config config = read_config(*checkpoint);
    if (plan) {
      Machine machine;
      if (device.starts_with("cuda")) {
        machine.device = DeviceType::Cuda;
        // A machine that is only described needs no GPU here.
        machine.vram = vram > 0 ? static_cast<int64_t>(vram) : device_memory(parse_device(device)).total;
      } else {
        parse_device(device);
      }
      machine.ram = ram > 0 ? static_cast<int64_t>(ram) : device_memory({}).total;
      return print_plan(plan_memory(*checkpoint, config, kv == "f32" ? 4 : 2), config, machine,
                        context > 0 ? context : config.max_positions, sequences, kv)
                 ? 0
                 : 1;
    }
    print_config(config);
  }
  print_formats(*checkpoint);
  print_tensors(*checkpoint, each);
  return 0;
}

}  // namespace quern
