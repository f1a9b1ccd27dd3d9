// quern synth: a random checkpoint with real shapes, streamed to disk.
#include <fmt/core.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_writer.h"
#include "commands.h"
#include "interrupt_guard.h"
#include "model/config.h"
#include "model/convert.h"
#include "model/ngram_hash.h"
#include "model/synthetic.h"
#include "progress_bar.h"
#include "text/gguf_tokenizer.h"

namespace quern {
namespace {

void write_json_file(const std::filesystem::path& path, const Json& json) {
  OutputFile file(path);
  file.write(write_json(json, {.indent = 2}) + "\n");
  file.finish();
}

}  // namespace

int synth_main(int argc, char** argv) {
  namespace fs = std::filesystem;
  CLI::App app(
      "Writes a random checkpoint with the shapes of a real one: a Hugging Face folder, or OUT.gguf.");
  std::string out, geometry, type = "bf16";
  SyntheticOptions options;
  int threads = 0;
  app.add_option("OUT", out, "the folder to write, or a path that ends in .gguf; it must not exist")
      ->required();
  app.add_option("--geometry", geometry, "tiny, or full: the released widths")
      ->required()
      ->check(CLI::IsMember({"tiny", "full"}));
  app.add_option("--layers", options.layers, "number of layers; every fourth is sparse attention")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app.add_option("--experts", options.experts, "experts a layer (default: 512 full, 16 tiny)")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--type", type, "any that quern convert takes")
      ->check([](const std::string& t) { return fault_of([&] { parse_type(t); }); })
      ->capture_default_str();
  app.add_option(
         "--ngram-base", options.ngram_base,
         "size of one head's part of the n-gram table (default: 20000 full, 500 tiny; the release: 20000000)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32));
  app.add_flag("--mtp", options.mtp, "with a draft block");
  app.add_option("--seed", options.seed, "of the random values")->capture_default_str();
  app.add_option("--threads", threads, "worker threads (default: one a processor)")
      ->check(CLI::Range(1, 1024));
  if (const auto code = parse_options(app, argc, argv)) return *code;

  options.full = geometry == "full";
  Json config_json = synthetic_config(options);
  const Config config = parse_config(config_json, "config.json");
  Recipe recipe;
  recipe.type = parse_type(type);
  check_recipe(recipe, fs::path(out).extension() == ".gguf");
  check_output(out);
  ThreadPool pool(threads);
  const InterruptGuard guard({SIGINT, SIGTERM});
  ProgressBar bar("writing");
  const Progress progress = [&](int64_t done, int64_t all) {
    bar.update(done, all);
    if (guard.asked()) throw Error(fmt::format("interrupted: {} is not written", out));
  };
  if (fs::path(out).extension() == ".gguf") {
    GgufKeys keys;
    write_gguf_config(keys, config, compute_ngram_table(config).hash, options.mtp, recipe.type);
    write_tokenizer_gguf(keys, synthetic_tokenizer(config), config.vocab);
    keys.u32("tokenizer.ggml.eos_token_id", config.ple.eos_id + 2);
    keys.u32("tokenizer.ggml.padding_token_id", config.ple.eos_id);
    keys.boolean("tokenizer.ggml.add_bos_token", false);
    keys.text("tokenizer.chat_template", synthetic_chat_template());
    const std::vector<SourceTensor> sources = synthetic_sources(config, options.seed);
    write_gguf(out, keys, gguf_tensors(sources, config, recipe), pool, progress);
    return 0;
  }

  const int64_t parts = options.full ? 128 : 4;
  const bool quantised = recipe.type == DType::F8E4M3 || recipe.type == DType::NVFP4;
  const std::vector<SourceTensor> sources =
      quantised ? synthetic_sources(config, options.seed) : std::vector<SourceTensor>();
  std::vector<ExportTensor> tensors;
  if (quantised) {
    tensors = hugging_face_tensors(sources, config, compute_ngram_table(config).hash, recipe, parts, pool);
    config_json.set("quantization_config", hugging_face_quantization(tensors));
  } else {
    tensors = synthetic_tensors(config, options.seed, parts);
    for (ExportTensor& t : tensors) {
      t.name = hugging_face_name(t.name);
      if (t.dtype == DType::BF16) t.dtype = recipe.type;
    }
  }
  OutputFolder folder(out);
  const fs::path& partial = folder.partial();
  write_json_file(partial / "config.json", config_json);
  write_json_file(partial / "generation_config.json", synthetic_generation_config(config));
  write_json_file(partial / "tokenizer.json", write_tokenizer_json(synthetic_tokenizer(config)));
  write_json_file(partial / "tokenizer_config.json", synthetic_tokenizer_config(config));
  write_safetensors(partial, tensors, pool, progress);
  folder.finish();
  return 0;
}

}  // namespace quern
