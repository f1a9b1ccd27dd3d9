// The options that every command which runs the model shares, and opening a model by them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "model/model.h"
#include "tensor/stream.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}

namespace quern {

struct ModelFlags {
  std::string model;
  std::string kv = "bf16";
  std::string device = "cpu";
  int threads = 0;  // 0: one per processor
  void add_to(CLI::App& app);
};

// For CLI11: what is wrong with the spelling of --kv or --device; empty where nothing is.
std::string kv_fault(const std::string& name);
std::string device_fault(const std::string& name);
// "f32", "bf16", "f16"; an Error lists them.
DType parse_kv(const std::string& name);
// "cpu", "cuda", "cuda:1".
Device parse_device(const std::string& name);

struct OpenModel {
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Stream> stream;
  std::shared_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Model> model;
};

// The checkpoint is opened and its config read before anything else is allocated; `options` gets the KV type from the
// flags. options.batch.context bounds a sequence: 0 means the model's own limit.
OpenModel open_model(const ModelFlags& flags, ModelOptions options);

// The ids a reply ends at: the tokenizer's <|im_end|> and `config`'s. Throws Error where the tokenizer has no such id.
std::vector<int32_t> reply_ends(const GenerationConfig& config, const Tokenizer& tokenizer);

}  // namespace quern
