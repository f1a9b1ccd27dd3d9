#include "model/convert.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/check.h"
#include "base/wildcard.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/safetensors_writer.h"
#include "model/ngram_hash.h"
#include "model/weights.h"
#include "ops/cpu/matmul.h"
#include "ops/linear.h"
#include "ops/quant_encode.h"
#include "ops/quant_formats.h"

namespace quern {
namespace {

using testing::HasSubstr;

const std::string kTiny = std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny";

// All values of every source tensor, by name.
std::map<std::string, std::vector<float>> values_of(Checkpoint& checkpoint) {
  Config config = read_config(checkpoint);
  std::map<std::string, std::vector<float>> out;
  for (const SourceTensor& s : source_tensors(checkpoint, config)) {
    std::vector<float> v(static_cast<size_t>(s.n_rows() * s.cols()));
    for (int64_t r = 0; r < s.n_rows(); ++r) s.decode(r, v.data() + r * s.cols());
    out.emplace(s.name, std::move(v));
  }
  return out;
}

void to_gguf(Checkpoint& from, const std::filesystem::path& path, const Recipe& recipe) {
  const Config config = read_config(from);
  const std::vector<SourceTensor> sources = source_tensors(from, config);
  GgufKeys keys;
  write_gguf_config(keys, config, read_ngram_table(from, config).hash, true, recipe.type);
  keys.u32("qwen4exp.vocab_size", config.vocab);
  ThreadPool pool(2);
  write_gguf(path, keys, gguf_tensors(sources, config, recipe), pool);
}

// Hugging Face → GGUF → Hugging Face in BF16 gives every matrix back to the bit, and A_log, which passes through
// -exp in float32; norms pass through 1 + w.
TEST(Convert, bf16_there_and_back_is_the_same) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  to_gguf(*original, folder.path / "m.gguf", {});
  const auto gguf = Checkpoint::open(folder.path / "m.gguf");
  const Config config = read_config(*gguf);
  EXPECT_TRUE(config.delta.tiled_value_heads);

  const std::vector<SourceTensor> sources = source_tensors(*gguf, config);
  const NgramTable table = read_ngram_table(*gguf, config);
  gguf->check_all_used();
  ThreadPool pool(2);
  std::filesystem::create_directory(folder.path / "hf");
  const std::vector<ExportTensor> exported = hugging_face_tensors(sources, config, table.hash, {}, 3, pool);
  write_safetensors(folder.path / "hf", exported, pool);
  test::write_text(folder.path / "hf/config.json", write_json(hugging_face_config(config, exported, 3)));
  const auto back = Checkpoint::open(folder.path / "hf");
  const Config back_config = read_config(*back);
  EXPECT_FALSE(back_config.delta.tiled_value_heads);
  EXPECT_EQ(back_config.norm_eps, 1e-6f);
  EXPECT_EQ(read_ngram_table(*back, back_config).hash.multiplier, table.hash.multiplier);

  const auto expected = values_of(*original), got = values_of(*back);
  ASSERT_EQ(expected.size(), got.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(got.count(name), 1u) << name;
    // 1 + w in float32 keeps w to half a unit in its last place, 2^-24 at 1.
    const bool norm = gguf_form(name) == WeightForm::OnePlus;
    float worst = 0;
    for (size_t i = 0; i < values.size(); ++i)
      worst = std::max(worst, std::fabs(values[i] - got.at(name)[i]));
    EXPECT_LE(worst, norm ? 0x1p-24f : 0.0f) << name;
  }
  back->check_all_used();
}

// A file written again in its own type: every tensor is copied, none decoded, in every type; and so by way of a folder
// where that holds the type.
void expect_same_bytes(const Checkpoint& a, const Checkpoint& b, const std::string& what) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size()) << what;
  for (const TensorView& t : a.tensors()) {
    const TensorView* other = b.find(t.name);
    ASSERT_NE(other, nullptr) << what << t.name;
    EXPECT_TRUE(t.dtype == other->dtype && t.shape == other->shape &&
                std::ranges::equal(t.bytes, other->bytes))
        << what << " " << t.name;
  }
}
TEST(Convert, gguf_to_gguf_of_one_type_copies_bytes) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const auto type = static_cast<DType>(i);
    if (!can_encode(type) || gguf_type_id(type) < 0) continue;
    const std::string stem = folder.path / std::string(name(type));
    Recipe recipe{.type = type, .overrides = {}};
    for (const int block : {0, 1, 2, 4, 5, 6, 7, 8})  // the experts of one layer are enough
      recipe.overrides.emplace_back(fmt::format("blk.{}.ffn_*_exps.weight", block), DType::BF16);
    to_gguf(*original, stem + "-a.gguf", recipe);
    const auto a = Checkpoint::open(stem + "-a.gguf");
    to_gguf(*a, stem + "-b.gguf", recipe);
    expect_same_bytes(*a, *Checkpoint::open(stem + "-b.gguf"), std::string(name(type)));
  }
}

// The folder that BF16 comes back as is the folder it went in as, but for norms so small that 1 + w in float32 loses them.
TEST(Convert, bf16_folders_come_back_to_the_byte) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  original->skip("visual.");
  to_gguf(*original, folder.path / "m.gguf", {});
  const auto gguf = Checkpoint::open(folder.path / "m.gguf");
  const Config config = read_config(*gguf);
  const std::vector<SourceTensor> sources = source_tensors(*gguf, config);
  ThreadPool pool(2);
  std::filesystem::create_directory(folder.path / "hf");
  write_safetensors(folder.path / "hf",
                    hugging_face_tensors(sources, config, read_ngram_table(*gguf, config).hash, {}, 1, pool),
                    pool);
  const auto back = Checkpoint::open(folder.path / "hf");
  int64_t compared = 0;
  for (const TensorView& t : original->tensors()) {
    if (t.name.starts_with("visual.") || t.name.find(".ngram_embedding.") != std::string::npos) continue;
    const TensorView* other = back->find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    ASSERT_EQ(t.dtype, other->dtype) << t.name;
    const bool norm = gguf_form(t.name) == WeightForm::OnePlus;
    if (t.dtype != DType::BF16) {
      EXPECT_TRUE(std::ranges::equal(t.bytes, other->bytes)) << t.name;
      continue;
    }
    for (size_t i = 0; i < t.bytes.size(); i += 2) {
      uint16_t was, is;
      std::memcpy(&was, t.bytes.data() + i, 2);
      std::memcpy(&is, other->bytes.data() + i, 2);
      if (norm && std::fabs(quant::bf16_to_float(was)) < 0x1p-16f) continue;
      ASSERT_EQ(was, is) << t.name << " " << i / 2;
      ++compared;
    }
  }
  EXPECT_GT(compared, 10'000'000);
}

// NVFP4 comes with a factor for each expert, without which weights of 0.02 would fall between the blocks' own scales. The
// loader multiplies by it, and so does reading for another conversion.
TEST(Convert, nvfp4_has_a_factor_beside_it) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  to_gguf(*original, folder.path / "m.gguf",
          {.type = DType::NVFP4, .overrides = {{"blk.2.attn_gate.weight", DType::NVFP4}}});
  const auto gguf = Checkpoint::open(folder.path / "m.gguf");
  const TensorView* scale = gguf->find("layers.6.mlp.experts.up_proj.scale");
  ASSERT_NE(scale, nullptr);
  EXPECT_EQ(scale->file_name, "blk.6.ffn_up_exps.scale");
  EXPECT_EQ(scale->shape, (std::vector<int64_t>{16}));
  EXPECT_EQ(gguf->find("layers.2.linear_attn.in_proj_z.scale")->shape, (std::vector<int64_t>{1}));
  const auto hf = values_of(*original), read = values_of(*gguf);
  const auto apart = [](const std::vector<float>& a, const std::vector<float>& b) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
      norm += std::pow(static_cast<double>(b[i]), 2);
    }
    return std::sqrt(difference / norm);
  };
  EXPECT_LT(apart(read.at("layers.6.mlp.experts.up_proj"), hf.at("layers.6.mlp.experts.up_proj")), 0.1);

  ThreadPool pool(2);
  Stream stream(pool);
  const ModelWeights w = bind_weights(*gguf, read_config(*gguf), true, stream);
  const std::vector<float>& up = read.at("layers.6.mlp.experts.up_proj");
  std::vector<float> row(256);
  for (const int e : {0, 7, 15}) {
    cpu::weight_row(w.moe[6].moe.up.items[static_cast<size_t>(e)], 33, row.data());
    for (size_t i = 0; i < row.size(); ++i)
      ASSERT_EQ(row[i], up[static_cast<size_t>((e * 96 + 33) * 256) + i]) << e << " " << i;
  }
  // A product multiplies by it as well: one-hot rows are rounded to 8 bits exactly.
  const Weight& z = w.delta[2].z;
  ASSERT_NE(z.global_scale, 1);
  OwnedTensor x(Device{}, DType::F32, {1, 256}), y(Device{}, DType::F32, {1, 768});
  std::fill_n(x.tensor.row<float>(0), 256, 0.0f);
  x.tensor.row<float>(0)[40] = 127;
  linear(stream, y.tensor, x.tensor, z, 1);
  stream.synchronize();
  for (int64_t n = 0; n < 768; ++n) {
    cpu::weight_row(z, n, row.data());
    ASSERT_NEAR(y.tensor.row<float>(0)[n], 127 * row[40], 1e-5 * std::fabs(127 * row[40])) << n;
  }
}

// Every matrix in NVFP4, the indexer's too, which GGUF cuts in two with a factor each.
TEST(Convert, nvfp4_everywhere) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  to_gguf(*original, folder.path / "m.gguf", {.type = DType::BF16, .overrides = {{"*", DType::NVFP4}}});
  const auto gguf = Checkpoint::open(folder.path / "m.gguf");
  const auto hf = values_of(*original), read = values_of(*gguf);
  gguf->check_all_used();
  const std::vector<float>&a = hf.at("layers.3.self_attn.indexer.index_qk_proj.weight"),
        &b = read.at("layers.3.self_attn.indexer.index_qk_proj.weight");
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(a[i]), 2);
  }
  EXPECT_LT(std::sqrt(difference / norm), 0.1);
  ThreadPool pool(2);
  Stream stream(pool);
  const auto again = Checkpoint::open(folder.path / "m.gguf");
  const ModelWeights w = bind_weights(*again, read_config(*again), true, stream);
  std::vector<float> row(256);
  cpu::weight_row(w.attention[0].index_qk, 600, row.data());
  for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(row[i], b[600 * 256 + i]);
  // eh_proj, both halves of which have its factor.
  EXPECT_NE(w.draft->fc_hidden.global_scale, 1);
  cpu::weight_row(w.draft->fc_hidden, 77, row.data());
  for (size_t i = 0; i < row.size(); ++i)
    ASSERT_EQ(row[i], read.at("mtp.fc_hidden.weight")[77 * 256 + i]);
}

// Layouts of others: the draft's mixer left out (it is the trunk's), a draft block without a model, scales of activations;
// and a tensor that is missing is named as the file would spell it.
TEST(Convert, gguf_layouts_of_others) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  const Config config = read_config(*original);
  const std::vector<SourceTensor> sources = source_tensors(*original, config);
  const NgramHash hash = read_ngram_table(*original, config).hash;
  ThreadPool pool(2);
  const auto write = [&](const char* file, const std::function<bool(std::string&)>& keep) {
    std::vector<ExportTensor> tensors;
    for (ExportTensor& t : gguf_tensors(sources, config, {})) {
      if (keep(t.name)) tensors.push_back(std::move(t));
    }
    ExportTensor activations;
    activations.name = "blk.0.attn_gate.input_scale";
    activations.shape = {1};
    activations.owned.resize(4);
    if (keep(activations.name)) tensors.push_back(activations);
    GgufKeys keys;
    write_gguf_config(keys, config, hash, true, DType::BF16);
    keys.u32("qwen4exp.vocab_size", config.vocab);
    write_gguf(folder.path / file, keys, tensors, pool);
    return folder.path / file;
  };
  const auto bind_error = [&](const std::filesystem::path& path) -> std::string {
    try {
      const auto c = Checkpoint::open(path);
      Stream stream(pool);
      const ModelWeights w = bind_weights(*c, read_config(*c), true, stream);
      EXPECT_EQ(w.draft->mix.norm.data == w.mix.norm.data,
                !c->find("mtp.hyper_connection_mixer.hc_norm.weight"));
      const auto again = Checkpoint::open(path);
      source_tensors(*again, read_config(*again));
      again->check_all_used();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(bind_error(write("all.gguf", [](std::string&) { return true; })), "");
  EXPECT_EQ(bind_error(write("mixer.gguf",
                             [](std::string& n) { return n.find("nextn.hc_head") == std::string::npos; })),
            "");
  EXPECT_THAT(
      bind_error(write("draft.gguf",
                       [](std::string& n) { return n.starts_with("blk.8.") || n == "token_embd.weight"; })),
      HasSubstr("draft.gguf: holds a draft block and no model"));
  EXPECT_THAT(
      bind_error(write("lacking.gguf", [](std::string& n) { return n != "blk.2.ffn_up_exps.weight"; })),
      HasSubstr("lacking.gguf: tensor 'blk.2.ffn_up_exps.weight' is missing"));
  EXPECT_THAT(
      bind_error(write("nextn.gguf", [](std::string& n) { return n.find(".nextn.") == std::string::npos; })),
      HasSubstr("qwen4exp.nextn_predict_layers: block 8 should be a draft block, and there is no "
                "'blk.8.nextn.eh_proj.weight'"));
  EXPECT_THAT(
      bind_error(write("index.gguf", [](std::string& n) { return !n.starts_with("blk.8.indexer."); })),
      HasSubstr("tensor 'blk.8.indexer.q_proj.weight' is missing"));
  EXPECT_THAT(
      bind_error(write("table.gguf", [](std::string& n) { return n != "per_layer_token_embd.weight"; })),
      HasSubstr("tensor 'per_layer_token_embd.weight' is missing"));
  EXPECT_THAT(bind_error(write("more.gguf",
                               [](std::string& n) {
                                 if (n == "blk.0.attn_gate.input_scale") n = "blk.0.attn_rot.weight";
                                 return true;
                               })),
              HasSubstr("tensor 'blk.0.attn_rot.weight': no part of the model reads this tensor"));
}

// Value head j of a GGUF file is Hugging Face's head (j mod K)·R + j div K (MODEL.md §1.5).
TEST(Convert, value_heads_are_tiled) {
  const test::TempFolder folder("convert");
  const auto original = Checkpoint::open(kTiny);
  to_gguf(*original, folder.path / "m.gguf", {.type = DType::F32, .overrides = {}});
  const auto gguf = Checkpoint::open(folder.path / "m.gguf");
  const auto hf = values_of(*original), tiled = values_of(*gguf);
  const std::string p = "layers.2.linear_attn.";
  for (int j = 0; j < 6; ++j) {
    const int source = j % 2 * 3 + j / 2;
    EXPECT_EQ(tiled.at(p + "dt_bias")[static_cast<size_t>(j)],
              hf.at(p + "dt_bias")[static_cast<size_t>(source)]);
    EXPECT_EQ(tiled.at(p + "A_log")[static_cast<size_t>(j)],
              static_cast<float>(-std::exp(double{hf.at(p + "A_log")[static_cast<size_t>(source)]})));
    for (const int i : {0, 77, 127}) {
      const auto row = [&](const auto& m, int head) {
        return m.at(p + "in_proj_qkv.weight")[static_cast<size_t>((512 + head * 128 + i) * 256 + 5)];
      };
      EXPECT_EQ(row(tiled, j), row(hf, source));
      const auto column = [&](const auto& m, int head) {
        return m.at(p + "out_proj.weight")[static_cast<size_t>(9 * 768 + head * 128 + i)];
      };
      EXPECT_EQ(column(tiled, j), column(hf, source));
    }
  }
  EXPECT_EQ(tiled.at(p + "norm.weight"), hf.at(p + "norm.weight"));
  EXPECT_EQ(tiled.at("layers.2.attn_hyper_connection.hc_norm.weight")[3],
            1 + hf.at("layers.2.attn_hyper_connection.hc_norm.weight")[3]);
}

TEST(Convert, rows_that_do_not_fit_take_the_next_type) {
  EXPECT_EQ(fitting_type(DType::Q4_K, 2560), DType::Q4_K);
  EXPECT_EQ(fitting_type(DType::Q4_K, 640), DType::Q5_0);
  EXPECT_EQ(fitting_type(DType::Q5_K, 640), DType::Q5_1);
  EXPECT_EQ(fitting_type(DType::Q6_K, 320), DType::Q8_0);
  EXPECT_EQ(fitting_type(DType::Q2_K, 640), DType::Q4_0);
  EXPECT_EQ(fitting_type(DType::IQ2_XS, 640), DType::IQ4_NL);
  EXPECT_EQ(fitting_type(DType::NVFP4, 640), DType::NVFP4);
  EXPECT_EQ(fitting_type(DType::NVFP4, 160), DType::IQ4_NL);
  EXPECT_EQ(fitting_type(DType::Q8_0, 16), DType::BF16);
}

// An override that nothing takes is a slip of the pen, not an option that does nothing; and a pattern as wide as a layer
// leaves the layer's norms as they are, which no product reads in blocks.
TEST(Convert, overrides_are_taken_or_refused) {
  const auto c = Checkpoint::open(kTiny);
  c->skip("visual.");
  const Config config = read_config(*c);
  const std::vector<SourceTensor> sources = source_tensors(*c, config);
  std::map<std::string, DType> types;
  for (const ExportTensor& t :
       gguf_tensors(sources, config, {.type = DType::BF16, .overrides = {{"blk.3.*", DType::Q8_0}}}))
    types[t.name] = t.dtype;
  EXPECT_EQ(types.at("blk.3.attn_q.weight"), DType::Q8_0);
  EXPECT_EQ(types.at("blk.3.attn_q_norm.weight"), DType::F32);
  EXPECT_EQ(types.at("blk.3.hc_attn_norm.weight"), DType::F32);
  EXPECT_EQ(types.at("blk.2.attn_gate.weight"), DType::BF16);

  const NgramHash hash = read_ngram_table(*c, config).hash;
  ThreadPool pool(1);
  for (const auto& [pattern, type, text] :
       {std::tuple{"blk.*.nosuch.weight", DType::Q8_0, "--tensor blk.*.nosuch.weight=Q8_0: no tensor"},
        {"*_norm.weight", DType::Q8_0, "--tensor *_norm.weight=Q8_0: no tensor"}}) {
    try {
      gguf_tensors(sources, config, {.type = DType::BF16, .overrides = {{"*", DType::F32}, {pattern, type}}});
      FAIL() << pattern;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(text));
    }
  }
  EXPECT_THROW(
      hugging_face_tensors(sources, config, hash,
                           {.type = DType::BF16, .overrides = {{"*hc_norm.weight", DType::F8E4M3}}}, 1, pool),
      Error);
}

TEST(Convert, patterns) {
  EXPECT_TRUE(matches("*", ""));
  EXPECT_TRUE(matches("blk.*.ffn_down_exps.weight", "blk.17.ffn_down_exps.weight"));
  EXPECT_TRUE(matches("*exps*", "blk.17.ffn_down_exps.weight"));
  EXPECT_FALSE(matches("blk.1.*", "blk.17.ffn_down_exps.weight"));
  EXPECT_FALSE(matches("output", "output.weight"));
  EXPECT_TRUE(matches("a*b*c", "axxbbyc"));
  EXPECT_FALSE(matches("a*b*c", "axxbby"));
  EXPECT_THROW(parse_type("q9_z"), Error);
  EXPECT_EQ(parse_type("Bf16"), DType::BF16);
}

}  // namespace
}  // namespace quern
