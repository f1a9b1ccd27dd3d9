#include "model_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <optional>

#include "base/check.h"

namespace quern {

void ModelFlags::add_to(CLI::App& app) {
  app.add_option("MODEL", model,
                 "a Hugging Face folder, a .safetensors file in one, a GGUF file, or a folder of GGUFs")
      ->required();
  app.add_option("--kv", kv, "type of the KV cache: f32, bf16 or f16")
      ->capture_default_str()
      ->check(kv_fault);
  app.add_option("--device", device, "cpu or cuda[:i]")->capture_default_str()->check(device_fault);
  app.add_option("--threads", threads, "threads on the CPU; 0: one per processor")
      ->capture_default_str()
      ->check(CLI::Range(0, 1024));
}

namespace {

std::optional<DType> kv_type(const std::string& name) {
  if (name == "f32") return DType::F32;
  if (name == "bf16") return DType::BF16;
  if (name == "f16") return DType::F16;
  return std::nullopt;
}

// The index of "cuda" and "cuda:1"; -1 for what is neither.
int cuda_index(const std::string& name) {
  if (name == "cuda") return 0;
  if (!name.starts_with("cuda:")) return -1;
  int index = -1;
  const char* end = name.data() + name.size();
  const auto r = std::from_chars(name.data() + 5, end, index);
  return r.ec == std::errc() && r.ptr == end ? index : -1;
}

}  // namespace

std::string kv_fault(const std::string& name) {
  if (kv_type(name)) return "";
  return fmt::format("expected f32, bf16 or f16, found '{}'", name);
}

std::string device_fault(const std::string& name) {
  if (name == "cpu" || cuda_index(name) >= 0) return "";
  return fmt::format("expected cpu or cuda[:i], found '{}'", name);
}

DType parse_kv(const std::string& name) {
  if (const auto type = kv_type(name)) return *type;
  throw Error("--kv: " + kv_fault(name));
}

Device parse_device(const std::string& name) {
  if (name == "cpu") return {};
  const Device device{DeviceType::Cuda, cuda_index(name)};
  if (device.index < 0) throw Error("--device: " + device_fault(name));
  if (!kHasCuda) throw Error(fmt::format("--device {}: this build has no CUDA kernels", name));
  return device;
}

OpenModel open_model(const ModelFlags& flags, ModelOptions options) {
  const Device device = parse_device(flags.device);
  options.kv = parse_kv(flags.kv);
  OpenModel m;
  m.checkpoint = Checkpoint::open(flags.model);
  const Config config = read_config(*m.checkpoint);
  if (options.batch.context == 0) options.batch.context = config.max_positions;
  if (options.batch.context > config.max_positions)
    throw Error(
        fmt::format("--ctx: the model's limit is {}, found {}", config.max_positions, options.batch.context));
  // One more token than the context: a draft's entry may lie one beyond it.
  if (options.n_pages == 0)
    options.n_pages =
        static_cast<int32_t>(options.n_slots * ((options.batch.context + kMaxDrafts) / kPageTokens + 1));
  m.pool = std::make_unique<ThreadPool>(flags.threads);
  m.stream = std::make_unique<Stream>(device, *m.pool);
  m.model = std::make_unique<Model>(m.checkpoint, config, options, *m.stream);
  return m;
}

std::vector<int32_t> reply_ends(const GenerationConfig& config, const Tokenizer& tokenizer) {
  std::vector<int32_t> ends;
  if (const auto id = tokenizer.find_special("<|im_end|>")) ends.push_back(*id);
  for (const int32_t id : config.eos_ids) {
    if (id >= tokenizer.size())
      throw Error(
          fmt::format("eos_token_id: expected token ids from 0 to {}, found {}", tokenizer.size() - 1, id));
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  return ends;
}

}  // namespace quern
