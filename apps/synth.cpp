// quern synth: a random checkpoint with real shapes, streamed to disk.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_writer.h"
#include "commands.h"
#include "model/config.h"
#include "model/synthetic.h"
#include "progress_bar.h"

namespace quern {
namespace {

void write_json_file(const std::filesystem::path& path, const Json& json) {
  OutputFile file(path);
  file.write(write_json(json, {.indent = 2}) + "\n");
  file.finish();
}

}  // namespace

int synth_main(int argc, char** argv) {
  CLI::App app("Writes a random checkpoint with the shapes of a real one: a Hugging Face folder.");
  std::string out, geometry, type = "bf16";
  SyntheticOptions options;
  int threads = 0;
  app.add_option("OUT", out, "the folder to write; it must not exist")->required();
  app.add_option("--geometry", geometry, "tiny, or full: the released widths")
      ->required()
      ->check(CLI::IsMember({"tiny", "full"}));
  app.add_option("--layers", options.layers, "number of layers; every fourth is sparse attention")
      ->check(CLI::Range(2, 4096))
      ->capture_default_str();
  app.add_option("--experts", options.experts, "experts a layer (default: 512 full, 16 tiny)")
      ->check(CLI::Range(1, 1 << 16));
  app.add_option("--type", type, "the weights' type: bf16, f16 or f32")
      ->check(CLI::IsMember({"bf16", "f16", "f32"}))
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
  const Json config_json = synthetic_config(options);
  const Config config = parse_config(config_json, "config.json");
  std::vector<ExportTensor> tensors = synthetic_tensors(config, options.seed, options.full ? 128 : 4);
  for (ExportTensor& t : tensors) {
    t.name = hugging_face_name(t.name);
    if (t.dtype == DType::BF16)
      t.dtype = type == "f32" ? DType::F32 : type == "f16" ? DType::F16 : DType::BF16;
  }

  namespace fs = std::filesystem;
  if (fs::exists(out)) throw Error(fmt::format("{}: exists already", out));
  const fs::path partial = out + ".partial";
  fs::remove_all(partial);
  std::error_code failed;
  fs::create_directories(partial, failed);
  if (failed) throw Error(fmt::format("{}: {}", partial.string(), failed.message()));
  write_json_file(partial / "config.json", config_json);
  write_json_file(partial / "generation_config.json", synthetic_generation_config(config));
  write_json_file(partial / "tokenizer.json", synthetic_tokenizer(config));
  write_json_file(partial / "tokenizer_config.json", synthetic_tokenizer_config(config));
  ThreadPool pool(threads);
  {
    ProgressBar bar("writing");
    write_safetensors(partial, tensors, pool, [&](int64_t done, int64_t all) { bar.update(done, all); });
  }
  fs::rename(partial, out);
  return 0;
}

}  // namespace quern
