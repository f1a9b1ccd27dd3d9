#include "checkpoint/safetensors_writer.h"

#include <fmt/core.h>

#include <memory>
#include <string>

#include "base/json.h"
#include "checkpoint/output_file.h"

namespace quern {
namespace {

struct Shard {
  size_t begin = 0, end = 0;  // tensors
  std::string name;
};

std::vector<Shard> split(const std::vector<ExportTensor>& tensors, int64_t shard_bytes) {
  std::vector<Shard> shards{{0, 0, ""}};
  int64_t size = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t bytes = tensors[i].bytes();
    if (i > shards.back().begin && size + bytes > shard_bytes) {
      shards.push_back({i, i, ""});
      size = 0;
    }
    size += bytes;
    shards.back().end = i + 1;
  }
  for (size_t i = 0; i < shards.size(); ++i)
    shards[i].name = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

std::string header(const std::vector<ExportTensor>& tensors, const Shard& shard) {
  Json json;
  Json meta;
  meta.set("format", "pt");
  json.set("__metadata__", meta);
  int64_t at = 0;
  for (size_t i = shard.begin; i < shard.end; ++i) {
    const ExportTensor& t = tensors[i];
    Json entry;
    // ModelOpt keeps two E2M1 values in a byte and calls it that.
    const bool nibbles = t.dtype == DType::F4E2M1;
    Json::Array shape(t.shape.begin(), t.shape.end());
    if (nibbles) shape.back() = t.shape.back() / 2;
    entry.set("dtype", name(nibbles ? DType::U8 : t.dtype));
    entry.set("shape", shape);
    entry.set("data_offsets", Json::Array{at, at + t.bytes()});
    at += t.bytes();
    json.as_object().emplace_back(t.name, std::move(entry));
  }
  std::string text = write_json(json);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data is aligned
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(text.size() >> (8 * i));
  return out + text;
}

}  // namespace

void write_safetensors(const std::filesystem::path& folder, const std::vector<ExportTensor>& tensors,
                       ThreadPool& pool, const Progress& progress, int64_t shard_bytes) {
  const std::vector<Shard> shards = split(tensors, shard_bytes);
  size_t at = 0;
  std::unique_ptr<OutputFile> file;
  const auto open = [&](const Shard& s) {
    file = std::make_unique<OutputFile>(folder / s.name);
    file->write(header(tensors, s));
  };
  open(shards[0]);
  export_tensors(
      tensors, pool,
      [&](size_t i) {
        if (i == shards[at].end) {
          file->finish();
          open(shards[++at]);
        }
        return [&](std::span<const std::byte> bytes) { file->write(bytes); };
      },
      progress);
  file->finish();
  if (shards.size() == 1) return;

  Json map;
  map.set("_", Json());
  map.as_object().clear();
  int64_t total = 0;
  for (const Shard& s : shards) {
    for (size_t i = s.begin; i < s.end; ++i) {
      map.as_object().emplace_back(tensors[i].name, s.name);
      total += tensors[i].bytes();
    }
  }
  Json meta, index;
  meta.set("total_size", total);
  index.set("metadata", meta);
  index.set("weight_map", map);
  OutputFile index_file(folder / "model.safetensors.index.json");
  index_file.write(write_json(index, {.indent = 2}) + "\n");
  index_file.finish();
}

}  // namespace quern
