// quern convert: a checkpoint as another one, Hugging Face ⇄ GGUF, in any format.
#include "model/convert.h"

#include <fmt/core.h>
#include <signal.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/gguf_writer.h"
#include "checkpoint/output_file.h"
#include "checkpoint/safetensors_writer.h"
#include "commands.h"
#include "interrupt_guard.h"
#include "model/ngram_hash.h"
#include "progress_bar.h"
#include "text/chat_template.h"
#include "text/gguf_tokenizer.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

void write_text_file(const fs::path& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.finish();
}

void gguf_text_keys(GgufKeys& keys, const Checkpoint& checkpoint, const Config& config) {
  if (checkpoint.gguf() != nullptr) {
    for (const auto& [key, value] : checkpoint.gguf()->metadata) {
      if (key.starts_with("tokenizer.") || key.starts_with("general.sampling.") || key == "general.name")
        keys.copy(key, value);
    }
    return;
  }
  const fs::path& folder = checkpoint.folder();
  keys.text("general.name", fs::absolute(folder).lexically_normal().filename().string());
  const GenerationConfig generation = read_generation_config(folder);
  if (generation.temperature) keys.f32("general.sampling.temp", *generation.temperature);
  if (generation.top_p) keys.f32("general.sampling.top_p", *generation.top_p);
  if (generation.min_p) keys.f32("general.sampling.min_p", *generation.min_p);
  if (generation.top_k) keys.i32("general.sampling.top_k", *generation.top_k);
  const fs::path tokenizer = folder / "tokenizer.json";
  if (!fs::exists(tokenizer)) {
    keys.u32("qwen4exp.vocab_size", config.vocab);
    return;
  }
  write_tokenizer_gguf(keys, read_tokenizer_json(read_file(tokenizer), tokenizer.string()), config.vocab);
  keys.u32("tokenizer.ggml.eos_token_id",
           generation.eos_ids.empty() ? config.ple.eos_id : generation.eos_ids.front());
  keys.u32("tokenizer.ggml.padding_token_id", config.ple.eos_id);
  keys.u32("tokenizer.ggml.bos_token_id", config.bos_id.value_or(config.ple.eos_id));
  keys.boolean("tokenizer.ggml.add_bos_token", false);
  const std::string chat = chat_template_source(folder);
  if (!chat.empty()) keys.text("tokenizer.chat_template", chat);
}

void hugging_face_text_files(const fs::path& out, const Checkpoint& checkpoint) {
  if (checkpoint.gguf() == nullptr) {
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
      if (fs::exists(checkpoint.folder() / name)) fs::copy_file(checkpoint.folder() / name, out / name);
    }
    return;
  }
  const GgufFile& f = *checkpoint.gguf();
  if (f.find("tokenizer.ggml.tokens") == nullptr) return;
  const TokenizerSpec spec = read_tokenizer_gguf(f);
  write_text_file(out / "tokenizer.json", write_json(write_tokenizer_json(spec)));
  Json tokenizer_config, generation;
  tokenizer_config.set("tokenizer_class", "Qwen2TokenizerFast");
  tokenizer_config.set("add_bos_token", false);
  const GenerationConfig from = read_generation_config(checkpoint);
  if (f.find("tokenizer.ggml.eos_token_id") != nullptr) {
    for (const AddedToken& a : spec.added) {
      if (a.id == from.eos_ids.front()) tokenizer_config.set("eos_token", a.text);
    }
  }
  write_text_file(out / "tokenizer_config.json", write_json(tokenizer_config, {.indent = 2}));
  if (f.find("tokenizer.chat_template") != nullptr)
    write_text_file(out / "chat_template.jinja", f.text("tokenizer.chat_template"));
  generation.set("eos_token_id", Json::Array(from.eos_ids.begin(), from.eos_ids.end()));
  generation.set("do_sample", true);
  if (from.temperature) generation.set("temperature", *from.temperature);
  if (from.top_p) generation.set("top_p", *from.top_p);
  if (from.min_p) generation.set("min_p", *from.min_p);
  if (from.top_k) generation.set("top_k", *from.top_k);
  write_text_file(out / "generation_config.json", write_json(generation, {.indent = 2}));
}

std::pair<std::string, DType> parse_override(const std::string& text) {
  const size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    throw Error(fmt::format("expected PATTERN=TYPE, found {}", text));
  return {text.substr(0, equals), parse_type(text.substr(equals + 1))};
}

}  // namespace

int convert_main(int argc, char** argv) {
  CLI::App app(
      "Writes a checkpoint in another container or format: OUT.gguf, or a Hugging Face folder. With a block "
      "type, experts "
      "take it, other matrices 8 bits, and router, norms and indexer stay as they are. Rows that are no "
      "whole "
      "blocks of a type take the nearest that fits.");
  std::string in, out, type;
  std::vector<std::string> overrides;
  int threads = 0;
  bool no_draft = false;
  app.add_option("IN", in, "a model's folder or file")->required();
  app.add_option("OUT", out, "a path that ends in .gguf, or a folder; it must not exist")->required();
  app.add_option(
         "--type", type,
         "bf16, f16, f32; for GGUF q8_0, q4_k, … (a wrong one lists them); for a folder fp8 and nvfp4")
      ->required()
      ->check([](const std::string& t) { return fault_of([&] { parse_type(t); }); });
  app.add_option("--tensor", overrides,
                 "PATTERN=TYPE for tensors whose name in OUT matches (* is any text; norms and other vectors "
                 "take only "
                 "bf16, f16 and f32); may be repeated")
      ->check([](const std::string& o) { return fault_of([&] { parse_override(o); }); });
  app.add_flag("--no-draft", no_draft, "leave the draft block out");
  app.add_option("--threads", threads, "worker threads (default: one a processor)")
      ->check(CLI::Range(1, 1024));
  if (const auto code = parse_options(app, argc, argv)) return *code;

  const bool to_gguf = fs::path(out).extension() == ".gguf";
  Recipe recipe;
  recipe.type = parse_type(type);
  for (const std::string& o : overrides) recipe.overrides.push_back(parse_override(o));
  check_recipe(recipe, to_gguf);
  check_output(out, in);

  const auto checkpoint = Checkpoint::open(in);
  Config config = read_config(*checkpoint);
  if (no_draft) {
    config.mtp_layers = 0;
    checkpoint->skip("mtp.");
  }
  if (const int n = checkpoint->skip("visual."); n > 0)
    fmt::print(stderr, "quern convert: the vision tower ({} tensors) is left out\n", n);
  const std::vector<SourceTensor> sources = source_tensors(*checkpoint, config);
  const NgramTable table = read_ngram_table(*checkpoint, config);
  checkpoint->check_all_used();
  const bool has_draft = !sources.empty() && sources.back().name.starts_with("mtp.");
  config.mtp_layers = has_draft ? 1 : 0;

  ThreadPool pool(threads);
  const InterruptGuard guard({SIGINT, SIGTERM});
  ProgressBar bar("converting");
  int64_t dropped_at = 0;
  const Progress progress = [&](int64_t done, int64_t all) {
    bar.update(done, all);
    if (guard.asked()) throw Error(fmt::format("interrupted: {} is not written", out));
    // What was read is not read again soon: it must not pile up as this process's memory.
    if (done - dropped_at < int64_t{128} << 20) return;
    dropped_at = done;
    checkpoint->drop_pages();
  };
  if (to_gguf) {
    GgufKeys keys;
    write_gguf_config(keys, config, table.hash, has_draft, recipe.type);
    gguf_text_keys(keys, *checkpoint, config);
    write_gguf(out, keys, gguf_tensors(sources, config, recipe), pool, progress);
    return 0;
  }
  OutputFolder folder(out);
  const fs::path& partial = folder.partial();
  const int64_t parts = std::max<int64_t>(1, table.rows * config.ple.d_row * 2 / (int64_t{800} << 20));
  const std::vector<ExportTensor> tensors =
      hugging_face_tensors(sources, config, table.hash, recipe, parts, pool);
  write_text_file(partial / "config.json",
                  write_json(hugging_face_config(config, tensors, parts), {.indent = 2}) + "\n");
  hugging_face_text_files(partial, *checkpoint);
  write_safetensors(partial, tensors, pool, progress);
  folder.finish();
  return 0;
}

}  // namespace quern
