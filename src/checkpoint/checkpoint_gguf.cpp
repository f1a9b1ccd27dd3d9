// Checkpoint over GGUF files: the shards of one model, and its names and forms as the model knows them.
#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"
#include "ops/quant_formats.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kMaxShards = 9999;

// "model-00001-of-00003.gguf" → "model"; "" where the name is no shard's.
std::string shard_stem(const fs::path& path, int64_t no, int64_t count) {
  const std::string suffix = fmt::format("-{:05}-of-{:05}.gguf", no + 1, count);
  const std::string name = path.filename().string();
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : "";
}

int64_t integer_or(const GgufFile& f, std::string_view key, int64_t otherwise) {
  return f.find(key) == nullptr ? otherwise : f.integer(key);
}

GgufLayout layout_of(const GgufFile& f) {
  const std::string_view architecture = f.text("general.architecture");
  if (architecture != "qwen4exp")
    f.fail("general.architecture",
           fmt::format("expected 'qwen4exp', found '{}'", architecture.substr(0, 40)));
  GgufLayout layout;
  const int64_t blocks = f.integer("qwen4exp.block_count");
  const int64_t drafts = integer_or(f, "qwen4exp.nextn_predict_layers", 0);
  if (blocks < 1 || blocks > 4096)
    f.fail("qwen4exp.block_count", fmt::format("expected 1 to 4096, found {}", blocks));
  if (drafts < 0 || drafts > 1 || drafts >= blocks)
    f.fail("qwen4exp.nextn_predict_layers", fmt::format("expected 0 or 1, found {}", drafts));
  layout.n_layers = static_cast<int>(blocks - drafts);
  const std::vector<int64_t> ple = f.integers("qwen4exp.ple.layers");
  if (ple.size() != 1 || ple[0] < 0 || ple[0] >= layout.n_layers)
    f.fail("qwen4exp.ple.layers", fmt::format("expected one layer from 0 to {}", layout.n_layers - 1));
  layout.ple_layer = static_cast<int>(ple[0]);
  return layout;
}

}  // namespace

void Checkpoint::open_gguf(const fs::path& first) {
  kind_ = Kind::Gguf;
  files_.push_back(MappedFile::open(first));
  gguf_ = std::make_unique<GgufFile>(parse_gguf(files_[0]->bytes(), first.string()));
  const int64_t count = std::max<int64_t>(1, integer_or(*gguf_, "split.count", 1));
  if (count > kMaxShards)
    gguf_->fail("split.count", fmt::format("expected at most {}, found {}", kMaxShards, count));
  if (const int64_t no = integer_or(*gguf_, "split.no", 0); no != 0)
    gguf_->fail("split.no", fmt::format("this is shard {} of {}; open the first", no + 1, count));

  const GgufLayout layout = layout_of(*gguf_);
  gguf_layers_ = layout.n_layers;
  gguf_ple_layer_ = layout.ple_layer;
  std::vector<GgufFile> others;
  if (count > 1) {
    const std::string stem = shard_stem(first, 0, count);
    if (stem.empty())
      gguf_->fail("split.count",
                  fmt::format("expected a file name that ends in -00001-of-{:05}.gguf", count));
    for (int64_t i = 1; i < count; ++i) {
      const fs::path path = folder_ / fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, count);
      if (!fs::exists(path))
        throw Error(fmt::format("{}: shard {} of {} is missing", path.string(), i + 1, count));
      files_.push_back(MappedFile::open(path));
      others.push_back(parse_gguf(files_.back()->bytes(), path.string()));
      const GgufFile& f = others.back();
      if (f.integer("split.no") != i)
        f.fail("split.no", fmt::format("expected {}, found {}", i, f.integer("split.no")));
      if (f.integer("split.count") != count)
        f.fail("split.count", fmt::format("expected {}, found {}", count, f.integer("split.count")));
    }
  }
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const GgufTensor& from : i == 0 ? gguf_->tensors : others[i - 1].tensors) {
      TensorView t;
      try {
        LogicalName logical = logical_of_gguf(from.name, layout);
        t.name = std::move(logical.name);
        t.form = logical.form;
      } catch (const Error& e) {
        throw Error(fmt::format("{}: {}", files_[i]->path().string(), e.what()));
      }
      t.file_name = from.name;
      t.dtype = from.dtype;
      t.shape = from.shape;
      t.bytes = from.bytes;
      t.file = static_cast<int>(i);
      add(std::move(t));
    }
  }
  if (gguf_->find("split.tensors.count") != nullptr) {
    const int64_t expected = gguf_->integer("split.tensors.count");
    if (expected != static_cast<int64_t>(tensors_.size()))
      gguf_->fail("split.tensors.count",
                  fmt::format("expected {} tensors in {} files, found {}", expected, count, tensors_.size()));
  }
  const auto any = [&](std::string_view prefix) {
    return std::any_of(tensors_.begin(), tensors_.end(),
                       [&](const TensorView& t) { return t.name.starts_with(prefix); });
  };
  if (any("mtp.") && !any("layers."))
    throw Error(fmt::format(
        "{}: holds a draft block and no model; draft blocks in files of their own are not supported",
        first.string()));
  // A block count that leaves the draft block out would take the model's last layer for it.
  if (any("mtp.layers.") && !any("mtp.eh_proj.") && !any("mtp.fc_"))
    gguf_->fail("qwen4exp.nextn_predict_layers",
                fmt::format("block {} should be a draft block, and there is no 'blk.{}.nextn.eh_proj.weight'",
                            layout.n_layers, layout.n_layers));
  assemble_index_projections();
}

// index_qk_proj [q rows | k rows], which GGUF stores as two tensors: joined as they are where both have one
// type and no factor (….scale, beside NVFP4), else as float32.
void Checkpoint::assemble_index_projections() {
  constexpr std::string_view kQ = ".indexer.q_proj.weight", kK = ".indexer.k_proj.weight";
  std::vector<TensorView> joined;
  const auto factor_of = [&](const TensorView& matrix) {
    const TensorView* scale = find(matrix.name.substr(0, matrix.name.size() - 6) + "scale");
    if (scale == nullptr) return 1.0f;
    if (scale->dtype != DType::F32 || scale->elements() != 1)
      throw Error(fmt::format("{}: expected one F32 scale, found {} {}", where(*scale),
                              dtype_info(scale->dtype).name, scale->shape_text()));
    float v = 0;
    std::memcpy(&v, scale->bytes.data(), sizeof v);
    return v;
  };
  for (const TensorView& q : tensors_) {
    if (!q.name.ends_with(kQ)) continue;
    const std::string stem = q.name.substr(0, q.name.size() - kQ.size());
    const TensorView* k = find(stem + std::string(kK));
    if (k == nullptr)
      throw Error(fmt::format("{}: tensor '{}' is missing",
                              files_[static_cast<size_t>(q.file)]->path().string(),
                              spelling(stem + std::string(kK))));
    const std::vector<int64_t> q_shape = squeezed(q.shape), k_shape = squeezed(k->shape);
    if (q_shape.size() != 2 || k_shape.size() != 2 || q_shape[1] != k_shape[1])
      throw Error(
          fmt::format("{}: shape {} does not fit the key's {}", where(q), q.shape_text(), k->shape_text()));
    TensorView t = q;
    t.name = stem + ".indexer.index_qk_proj.weight";
    t.shape = {q_shape[0] + k_shape[0], q_shape[1]};
    const float factors[] = {factor_of(q), factor_of(*k)};
    const bool as_they_are = q.dtype == k->dtype && factors[0] == 1 && factors[1] == 1;
    t.dtype = as_they_are ? q.dtype : DType::F32;
    std::vector<std::byte>& bytes = assembled_.emplace_back();
    bytes.resize(static_cast<size_t>(t.shape[0] * row_bytes(t.dtype, t.shape[1])));
    std::byte* to = bytes.data();
    for (const TensorView* part : {&q, k}) {
      if (as_they_are) {
        std::memcpy(to, part->bytes.data(), part->bytes.size());
        to += part->bytes.size();
        continue;
      }
      std::vector<float> row(static_cast<size_t>(t.shape[1]));
      for (int64_t r = 0; r < part->elements() / t.shape[1]; ++r, to += row.size() * sizeof(float)) {
        decode_row(part->dtype, part->bytes.data() + r * row_bytes(part->dtype, t.shape[1]), t.shape[1],
                   row.data());
        for (float& v : row) v *= factors[part == k];
        std::memcpy(to, row.data(), row.size() * sizeof(float));
      }
    }
    t.bytes = bytes;
    joined.push_back(std::move(t));
  }
  if (joined.empty()) return;
  // The halves go: nothing is to be read twice.
  std::vector<TensorView> kept;
  for (TensorView& t : tensors_) {
    const std::string_view stem(t.name.data(), std::min(t.name.size(), t.name.rfind('.')));
    if (!stem.ends_with(".indexer.q_proj") && !stem.ends_with(".indexer.k_proj"))
      kept.push_back(std::move(t));
  }
  tensors_.clear();
  by_name_.clear();
  for (TensorView& t : kept) add(std::move(t));
  for (TensorView& t : joined) add(std::move(t));
}

}  // namespace quern
