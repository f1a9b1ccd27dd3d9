// Folders in the official FP8 layout and in ModelOpt's: written from the bundled model, held to the released files'
// names, shapes and types (MODEL.md §3.4), and read back: as weights, against a decoder written here from the formats'
// descriptions, and as a model, against one that holds the same numbers in float32.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "base/check.h"
#include "base/mapped_file.h"
#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/safetensors_writer.h"
#include "model/convert.h"
#include "model/ngram_hash.h"
#include "model/tiny_model.h"
#include "model/weights.h"
#include "ops/cpu/matmul.h"

namespace quern {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

const std::string kTiny = std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny";

void convert(const fs::path& in, const fs::path& out, const Recipe& recipe) {
  const auto from = Checkpoint::open(in);
  from->skip("visual.");
  const Config config = read_config(*from);
  const std::vector<SourceTensor> sources = source_tensors(*from, config);
  const NgramTable table = read_ngram_table(*from, config);
  from->check_all_used();
  ThreadPool pool(2);
  const std::vector<ExportTensor> tensors =
      hugging_face_tensors(sources, config, table.hash, recipe, 3, pool);
  fs::create_directory(out);
  write_safetensors(out, tensors, pool);
  test::write_text(out / "config.json", write_json(hugging_face_config(config, tensors, 3)));
}

// The formats, from their descriptions.
double e4m3(std::byte b) {
  const int code = std::to_integer<int>(b), e = (code >> 3) & 15, m = code & 7;
  const double v = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return code & 128 ? -v : v;
}
double bf16(const TensorView& t, int64_t i) {
  uint16_t h;
  std::memcpy(&h, t.bytes.data() + 2 * i, 2);
  const uint32_t bits = uint32_t{h} << 16;
  float v;
  std::memcpy(&v, &bits, 4);
  return static_cast<double>(v);
}
double f32(const TensorView& t) {
  float v;
  std::memcpy(&v, t.bytes.data(), 4);
  return static_cast<double>(v);
}

const TensorView& at(const Checkpoint& c, const std::string& file_name, DType dtype,
                     std::vector<int64_t> shape) {
  for (const TensorView& t : c.tensors()) {
    if (t.file_name != file_name) continue;
    EXPECT_EQ(name(t.dtype), name(dtype)) << file_name;
    EXPECT_EQ(t.shape, shape) << file_name;
    return t;
  }
  ADD_FAILURE() << "no tensor " << file_name;
  throw Error("no tensor " + file_name);
}

// A matrix as the folder stores it, in double.
std::vector<double> fp8_matrix(const Checkpoint& c, const std::string& stem, int64_t n, int64_t k) {
  const int64_t cols = (k + 127) / 128;
  const TensorView& w = at(c, stem + ".weight", DType::F8E4M3, {n, k});
  const TensorView& s = at(c, stem + ".weight_scale_inv", DType::BF16, {(n + 127) / 128, cols});
  std::vector<double> out;
  for (int64_t i = 0; i < n * k; ++i)
    out.push_back(e4m3(w.bytes[static_cast<size_t>(i)]) * bf16(s, i / k / 128 * cols + i % k / 128));
  return out;
}
std::vector<double> nvfp4_matrix(const Checkpoint& c, const std::string& stem, int64_t n, int64_t k) {
  constexpr double kCodes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const TensorView& w = at(c, stem + ".weight", DType::U8, {n, k / 2});
  const TensorView& s = at(c, stem + ".weight_scale", DType::F8E4M3, {n, k / 16});
  const double global = f32(at(c, stem + ".weight_scale_2", DType::F32, {}));
  EXPECT_GT(f32(at(c, stem + ".input_scale", DType::F32, {})), 0);
  std::vector<double> out;
  for (int64_t i = 0; i < n * k; ++i) {
    const int byte = std::to_integer<int>(w.bytes[static_cast<size_t>(i / 2)]),
              code = i % 2 ? byte >> 4 : byte & 15;
    const double v = kCodes[code & 7] * e4m3(s.bytes[static_cast<size_t>(i / 16)]) * global;
    out.push_back(code & 8 ? -v : v);
  }
  return out;
}

std::map<std::string, std::vector<float>> values_of(const fs::path& path) {
  const auto c = Checkpoint::open(path);
  std::map<std::string, std::vector<float>> out;
  for (const SourceTensor& s : source_tensors(*c, read_config(*c))) {
    std::vector<float> v(static_cast<size_t>(s.n_rows() * s.cols()));
    for (int64_t r = 0; r < s.n_rows(); ++r) s.decode(r, v.data() + r * s.cols());
    out.emplace(s.name, std::move(v));
  }
  return out;
}

// ‖a - b‖ / ‖b‖
template <typename A, typename B>
double apart(const A* a, const B* b, size_t n) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(difference / norm);
}

// Logits of every row and the outputs of every block that has a tap.
std::map<std::string, std::vector<float>> outputs_of(const fs::path& path) {
  test::TinyModel m(2, DType::F32, false, path.string());
  std::map<std::string, std::vector<float>> out;
  m.model->set_tap([&](std::string_view tap, Tensor t) {
    if (tap.starts_with("select")) return;
    auto& rows = out[std::string(tap)];
    for (int64_t r = 0; r < t.rows(); ++r)
      rows.insert(rows.end(), t.row<float>(r), t.row<float>(r) + t.cols());
  });
  std::mt19937 rng(77);
  const auto s = m.sequence();
  for (const auto& row : m.prefill(*s, test::random_ids(rng, 150)))
    out["logits"].insert(out["logits"].end(), row.begin(), row.end());
  return out;
}

// The experts that the loader binds are those numbers.
void expect_bound(const fs::path& path, const std::map<std::string, std::vector<float>>& values) {
  const auto c = Checkpoint::open(path);
  ThreadPool pool(1);
  Stream stream(pool);
  const ModelWeights w = bind_weights(*c, read_config(*c), true, stream);
  const auto check = [&](const ExpertWeights& experts, const std::string& name) {
    const std::vector<float>& expected = values.at(name);
    std::vector<float> got(expected.size());
    for (int64_t e = 0; e < experts.n_experts; ++e) {
      for (int64_t r = 0; r < experts.n; ++r)
        cpu::weight_row(experts.items[static_cast<size_t>(e)], r,
                        got.data() + (e * experts.n + r) * experts.k);
    }
    EXPECT_LT(apart(got.data(), expected.data(), got.size()), 1e-7) << name;
  };
  for (size_t i = 0; i < w.moe.size(); ++i) {
    const std::string stem = "layers." + std::to_string(i) + ".mlp.experts.";
    check(w.moe[i].moe.gate, stem + "gate_proj");
    check(w.moe[i].moe.up, stem + "up_proj");
    check(w.moe[i].moe.down, stem + "down_proj");
  }
  check(w.draft->moe.moe.up, "mtp.layers.0.mlp.experts.up_proj");
}

// The folder and the same numbers in float32 are one model, to float32's rounding. Where products round their rows to 8
// bits (E2M1), the first layer's experts, whose inputs are equal, are apart by that; what follows has other inputs.
enum class Products : uint8_t { Float, Rounded };
void expect_same_model(const fs::path& quantised, const fs::path& plain, Products products) {
  convert(quantised, plain, {.type = DType::F32, .overrides = {}});
  const auto a = values_of(quantised), b = values_of(plain);
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, values] : a) EXPECT_EQ(values, b.at(name)) << name;
  expect_bound(quantised, a);
  const auto got = outputs_of(quantised), expected = outputs_of(plain);
  ASSERT_EQ(got.size(), expected.size());
  ASSERT_EQ(got.count("moe0"), 1u);
  for (const auto& [tap, values] : got) {
    const double error = apart(values.data(), expected.at(tap).data(), values.size());
    if (products == Products::Float) {
      EXPECT_LT(error, 3e-6) << tap;
    } else if (tap == "gdn0") {
      EXPECT_LT(error, 3e-6);
    } else if (tap == "moe0") {
      EXPECT_LT(error, 0.02);
    }
  }
}

TEST(QuantisedFolder, fp8_has_the_released_layout_and_reads_as_its_numbers) {
  const test::TempFolder folder("fp8");
  convert(kTiny, folder.path / "fp8", {.type = DType::F8E4M3, .overrides = {}});
  const auto c = Checkpoint::open(folder.path / "fp8");
  EXPECT_EQ(read_config(*c).quantization.kind, Quantization::Fp8Block);
  EXPECT_EQ(c->config().find("text_config")->find("ple_embedding_dtype")->as_string(), "float8_e4m3fn");

  const auto original = values_of(kTiny), read = values_of(folder.path / "fp8");
  const std::string trunk = "model.language_model.layers.";
  for (const auto& [stem, logical] :
       {std::pair<std::string, std::string>{trunk + "2.mlp.experts.", "layers.2.mlp.experts."},
        {trunk + "7.mlp.experts.", "layers.7.mlp.experts."},
        {"mtp.layers.0.mlp.experts.", "mtp.layers.0.mlp.experts."}}) {
    for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = std::string(which) == "down_proj";
      const int64_t n = down ? 256 : 96, k = down ? 96 : 256;
      for (const int e : {0, 9, 15}) {
        const std::vector<double> stored = fp8_matrix(*c, stem + std::to_string(e) + "." + which, n, k);
        const float* values = read.at(logical + which).data() + e * n * k;
        for (int64_t i = 0; i < n * k; ++i)
          ASSERT_EQ(stored[static_cast<size_t>(i)], static_cast<double>(values[i]))
              << stem << e << which << i;
        // E4M3 rounds to 1 part in 16 at most, 1 in 40 on average.
        EXPECT_LT(apart(values, original.at(logical + which).data() + e * n * k, static_cast<size_t>(n * k)),
                  0.03);
      }
    }
  }
  // The table: E4M3 with one scale. Everything else is the original, byte for byte.
  const std::string table = trunk + "1.ple.ple_embedding.ngram_embedding.";
  const TensorView& shard = at(*c, table + "shard_1.weight", DType::F8E4M3, {21632, 16});
  const double scale = bf16(at(*c, table + "weight_scale", DType::BF16, {1}), 0);
  const std::vector<float>& rows = read.at("layers.1.ple.ple_embedding.ngram_embedding.weight");
  for (size_t i = 0; i < shard.bytes.size(); ++i)
    ASSERT_EQ(e4m3(shard.bytes[i]) * scale, static_cast<double>(rows[21632 * 16 + i])) << i;
  const auto whole = Checkpoint::open(kTiny);
  for (const TensorView& t : whole->tensors()) {
    if (t.name.starts_with("visual.") || t.name.find(".experts.") != std::string::npos ||
        t.name.find(".ngram_embedding.") != std::string::npos)
      continue;
    const TensorView* other = c->find(t.name);
    ASSERT_NE(other, nullptr) << t.name;
    EXPECT_TRUE(t.dtype == other->dtype && std::ranges::equal(t.bytes, other->bytes)) << t.name;
  }
  expect_same_model(folder.path / "fp8", folder.path / "f32", Products::Float);
}

// A folder as others may have written it: any codes, scales that no rule of ours would choose, of float32 where the
// layout leaves the type open.
void write_foreign(const fs::path& out, DType type,
                   const std::vector<std::pair<std::string, DType>>& overrides) {
  const auto from = Checkpoint::open(kTiny);
  from->skip("visual.");
  const Config config = read_config(*from);
  const std::vector<SourceTensor> sources = source_tensors(*from, config);
  ThreadPool pool(2);
  const Recipe recipe{.type = type, .overrides = overrides};
  std::vector<ExportTensor> tensors =
      hugging_face_tensors(sources, config, read_ngram_table(*from, config).hash, recipe, 3, pool);
  uint64_t seed = 0;
  for (ExportTensor& t : tensors) {
    const auto random = [seed = ++seed * 0x9e3779b97f4a7c15](int64_t i) {
      const uint64_t x = (seed + static_cast<uint64_t>(i)) * 0xbf58476d1ce4e5b9;
      return static_cast<uint8_t>((x ^ x >> 31) * 0x94d049bb133111eb >> 40);
    };
    if (t.dtype == DType::F4E2M1 || t.dtype == DType::F8E4M3) {
      const bool codes = t.dtype == DType::F4E2M1, scales = t.name.ends_with("_scale");
      t.rows = nullptr;
      t.encoded = [=, size = row_bytes(t.dtype, t.cols())](int64_t begin, int64_t end, std::byte* to) {
        for (int64_t i = begin * size; i < end * size; ++i) {
          const uint8_t byte = random(i);
          // Scales have no sign; 0x7f and 0xff are no numbers.
          *to++ = static_cast<std::byte>(codes                          ? byte
                                         : scales                       ? byte % 0x7f
                                         : byte == 0x7f || byte == 0xff ? 1
                                                                        : byte);
        }
      };
    } else if (t.name.find("_scale") != std::string::npos) {
      t.dtype = DType::F32;
      t.rows = [=, k = t.cols()](int64_t begin, int64_t end, float* to) {
        for (int64_t i = begin * k; i < end * k; ++i)
          *to++ = 0x1p-14f * (1 + static_cast<float>(random(i)) / 3);
      };
    }
  }
  fs::create_directory(out);
  write_safetensors(out, tensors, pool);
  test::write_text(out / "config.json", write_json(hugging_face_config(config, tensors, 3)));
}

using Names = std::function<bool(const std::string&)>;
void expect_same_bytes(const fs::path& a_path, const fs::path& b_path, const Names& compared = {}) {
  const auto a = Checkpoint::open(a_path), b = Checkpoint::open(b_path);
  EXPECT_EQ(a->tensors().size(), b->tensors().size());
  for (const TensorView& t : a->tensors()) {
    if (compared && !compared(t.name)) continue;
    const TensorView* other = b->find(t.name);
    ASSERT_NE(other, nullptr) << t.file_name;
    EXPECT_TRUE(t.dtype == other->dtype && t.shape == other->shape &&
                std::ranges::equal(t.bytes, other->bytes))
        << t.file_name;
  }
}

// What is quantised already comes out as it went in, whoever quantised it.
TEST(QuantisedFolder, fp8_again_is_the_same_to_the_byte) {
  const test::TempFolder folder("fp8");
  convert(kTiny, folder.path / "a", {.type = DType::F8E4M3, .overrides = {}});
  convert(folder.path / "a", folder.path / "b", {.type = DType::F8E4M3, .overrides = {}});
  expect_same_bytes(folder.path / "a", folder.path / "b");
  const std::vector<std::pair<std::string, DType>> overrides{
      {"*layers.2.linear_attn.in_proj_z.weight", DType::F8E4M3}};
  write_foreign(folder.path / "c", DType::F8E4M3, overrides);
  convert(folder.path / "c", folder.path / "d", {.type = DType::F8E4M3, .overrides = overrides});
  expect_same_bytes(folder.path / "c", folder.path / "d");
}

// The same of NVFP4, with its factors and scales of activations, and by way of a GGUF file, which tiles value heads: in
// the columns of out_proj whole groups change places.
TEST(QuantisedFolder, nvfp4_again_is_the_same_to_the_byte) {
  const test::TempFolder folder("nvfp4");
  const std::vector<std::pair<std::string, DType>> overrides{
      {"*layers.2.linear_attn.in_proj_z.weight", DType::NVFP4},
      {"*layers.2.linear_attn.out_proj.weight", DType::NVFP4},
      {"*ngram_embedding*", DType::BF16},
      {"mtp.*.experts.*", DType::F8E4M3}};
  write_foreign(folder.path / "a", DType::NVFP4, overrides);
  convert(folder.path / "a", folder.path / "b", {.type = DType::NVFP4, .overrides = overrides});
  expect_same_bytes(folder.path / "a", folder.path / "b");

  const auto from = Checkpoint::open(folder.path / "a");
  const Config config = read_config(*from);
  const std::vector<SourceTensor> sources = source_tensors(*from, config);
  GgufKeys keys;
  write_gguf_config(keys, config, read_ngram_table(*from, config).hash, true, DType::NVFP4);
  keys.u32("qwen4exp.vocab_size", config.vocab);
  ThreadPool pool(2);
  const Recipe recipe{.type = DType::NVFP4,
                      .overrides = {{"*", DType::BF16},
                                    {"*ffn_*_exps.weight", DType::NVFP4},
                                    {"blk.2.attn_gate.weight", DType::NVFP4},
                                    {"blk.2.ssm_out.weight", DType::NVFP4}}};
  write_gguf(folder.path / "m.gguf", keys, gguf_tensors(sources, config, recipe), pool);
  const auto a = values_of(folder.path / "a"), gguf = values_of(folder.path / "m.gguf");
  const std::vector<float>&was = a.at("layers.5.mlp.experts.up_proj"),
        &is = gguf.at("layers.5.mlp.experts.up_proj");
  EXPECT_LT(apart(is.data(), was.data(), was.size()), 1e-7);
  // 96 columns are no whole number of GGUF's blocks of 64, so down_proj goes another way.
  convert(folder.path / "m.gguf", folder.path / "c", {.type = DType::NVFP4, .overrides = overrides});
  expect_same_bytes(folder.path / "a", folder.path / "c", [](const std::string& name) {
    return name.starts_with("layers.") && name.find("down_proj") == std::string::npos &&
           (name.find(".experts.") != std::string::npos ||
            name.starts_with("layers.2.linear_attn.in_proj_z") ||
            name.starts_with("layers.2.linear_attn.out_proj"));
  });
}

TEST(QuantisedFolder, nvfp4_has_modelopts_layout_and_reads_as_its_numbers) {
  const test::TempFolder folder("nvfp4");
  convert(kTiny, folder.path / "nvfp4", {.type = DType::NVFP4, .overrides = {}});
  const auto c = Checkpoint::open(folder.path / "nvfp4");
  EXPECT_EQ(read_config(*c).quantization.kind, Quantization::ModelOpt);
  EXPECT_EQ(c->config().find("quantization_config")->find("quant_algo")->as_string(), "NVFP4");
  const auto original = values_of(kTiny), read = values_of(folder.path / "nvfp4");
  const std::string stem = "model.language_model.layers.5.mlp.experts.", logical = "layers.5.mlp.experts.";
  for (const char* which : {"gate_proj", "up_proj", "down_proj"}) {
    const bool down = std::string(which) == "down_proj";
    const int64_t n = down ? 256 : 96, k = down ? 96 : 256;
    for (const int e : {0, 11}) {
      const std::vector<double> stored = nvfp4_matrix(*c, stem + std::to_string(e) + "." + which, n, k);
      const float* values = read.at(logical + which).data() + e * n * k;
      EXPECT_LT(apart(values, stored.data(), stored.size()), 1e-7);
      EXPECT_LT(apart(values, original.at(logical + which).data() + e * n * k, static_cast<size_t>(n * k)),
                0.1);
    }
  }
  // Gate and up of an expert share their scalar; the draft block stays BF16.
  EXPECT_EQ(f32(at(*c, stem + "3.gate_proj.weight_scale_2", DType::F32, {})),
            f32(at(*c, stem + "3.up_proj.weight_scale_2", DType::F32, {})));
  at(*c, "mtp.layers.0.mlp.experts.gate_up_proj", DType::BF16, {16, 192, 256});
  expect_same_model(folder.path / "nvfp4", folder.path / "f32", Products::Rounded);
}

// ModelOpt's mixed folders: the draft block's experts FP8 in blocks (FP8_PB_WO), a dense matrix too.
TEST(QuantisedFolder, mixed_precision_says_so_layer_by_layer) {
  const test::TempFolder folder("mixed");
  convert(kTiny, folder.path / "mixed",
          {.type = DType::NVFP4,
           .overrides = {{"mtp.*experts*", DType::F8E4M3}, {"*layers.4.*out_proj*", DType::F8E4M3}}});
  const auto c = Checkpoint::open(folder.path / "mixed");
  const Json& q = *c->config().find("quantization_config");
  EXPECT_EQ(q.find("quant_algo")->as_string(), "MIXED_PRECISION");
  const Json& layers = *q.find("quantized_layers");
  EXPECT_EQ(layers.find("mtp.layers.0.mlp.experts")->find("quant_algo")->as_string(), "FP8_PB_WO");
  EXPECT_EQ(layers.find("model.language_model.layers.0.mlp.experts")->find("quant_algo")->as_string(),
            "NVFP4");
  fp8_matrix(*c, "mtp.layers.0.mlp.experts.15.up_proj", 96, 256);
  fp8_matrix(*c, "model.language_model.layers.4.linear_attn.out_proj", 256, 768);
  expect_same_model(folder.path / "mixed", folder.path / "f32", Products::Rounded);
}

// ModelOpt's plain FP8: one scale for the matrix, beside one for activations that we do not need.
TEST(QuantisedFolder, fp8_with_one_scale_for_the_matrix) {
  const test::TempFolder folder("whole");
  const auto from = Checkpoint::open(kTiny);
  const Config config = read_config(*from);
  const std::vector<SourceTensor> sources = source_tensors(*from, config);
  ThreadPool pool(2);
  std::vector<ExportTensor> tensors = hugging_face_tensors(
      sources, config, read_ngram_table(*from, config).hash, {.type = DType::BF16, .overrides = {}}, 1, pool);
  const std::string name = "model.language_model.layers.0.linear_attn.in_proj_z.weight";
  for (ExportTensor& t : tensors) {
    if (t.name != name) continue;
    t.dtype = DType::F8E4M3;
    t.encoded = nullptr;
    t.rows = [](int64_t begin, int64_t end, float* out) {
      for (int64_t i = 0; i < (end - begin) * 256; ++i)
        out[i] = static_cast<float>((begin * 256 + i) % 13 - 6);
    };
  }
  for (const char* which : {"weight_scale", "input_scale"}) {
    ExportTensor s;
    s.name = name.substr(0, name.size() - 6) + which;
    s.rows = [](int64_t, int64_t, float* out) { *out = 0.0625f; };
    tensors.push_back(s);
  }
  fs::create_directory(folder.path / "a");
  write_safetensors(folder.path / "a", tensors, pool);
  Json top = hugging_face_config(config, tensors, 1), how;
  how.set("quant_method", "modelopt");
  how.set("quant_algo", "FP8");
  top.set("quantization_config", how);
  test::write_text(folder.path / "a/config.json", write_json(top));
  const auto read = values_of(folder.path / "a");
  EXPECT_EQ(read.at("layers.0.linear_attn.in_proj_z.weight")[15], -4 * 0.0625f);
  expect_same_model(folder.path / "a", folder.path / "f32", Products::Float);
}

// Community folders pack the table too.
TEST(QuantisedFolder, a_packed_ngram_table_is_refused_by_name) {
  const test::TempFolder folder("packed");
  ThreadPool pool(1);
  ExportTensor t;
  t.name = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight";
  t.dtype = DType::F4E2M1;
  t.shape = {4, 16};
  t.owned.resize(32);
  write_safetensors(folder.path, {t}, pool);
  const auto c = Checkpoint::open(folder.path);
  try {
    c->take_rows("layers.1.ple.ple_embedding.ngram_embedding", 4, 16);
    FAIL();
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("shard_0.weight': an n-gram table of packed 4-bit values"));
  }
}

TEST(QuantisedFolder, what_a_container_cannot_hold_is_refused) {
  const auto refusal = [](const Recipe& recipe, bool gguf) -> std::string {
    try {
      check_recipe(recipe, gguf);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal({.type = DType::NVFP4, .overrides = {}}, true), "");
  EXPECT_EQ(refusal({.type = DType::NVFP4, .overrides = {{"*", DType::F32}}}, false), "");
  EXPECT_THAT(refusal({.type = DType::F8E4M3, .overrides = {}}, true),
              HasSubstr("type fp8: GGUF has no such type"));
  EXPECT_THAT(refusal({.type = DType::Q4_K, .overrides = {}}, false),
              HasSubstr("type Q4_K: a Hugging Face folder"));
  EXPECT_THAT(refusal({.type = DType::BF16, .overrides = {{"*", DType::Q8_0}}}, false),
              HasSubstr("type Q8_0"));
  EXPECT_EQ(parse_type("fp8"), DType::F8E4M3);
}

// An older export says how it is quantised in a file of its own.
TEST(QuantisedFolder, hf_quant_config_counts) {
  const test::TempFolder folder("old");
  convert(kTiny, folder.path / "m", {});
  const auto with = [&](const std::string& algo) -> std::string {
    test::write_text(folder.path / "m/hf_quant_config.json",
                     R"({"quantization": {"quant_algo": ")" + algo + "\"}}");
    try {
      EXPECT_EQ(read_config(*Checkpoint::open(folder.path / "m")).quantization.kind, Quantization::ModelOpt);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(with("NVFP4"), "");
  EXPECT_THAT(with("W4A8_AWQ"), HasSubstr("hf_quant_config.json: quantization.quant_algo: expected"));
  // Beside a quantization_config it has to say the same.
  Json config = parse_json(read_file((folder.path / "m/config.json").string())), fp8;
  fp8.set("quant_method", "fp8");
  fp8.set("weight_block_size", Json::Array{128, 128});
  config.set("quantization_config", fp8);
  test::write_text(folder.path / "m/config.json", write_json(config));
  EXPECT_THAT(with("NVFP4"), HasSubstr("hf_quant_config.json: quantization: contradicts the quant_method"));
}

// Quantised tensors in a folder that does not say so, as a config.json copied from the BF16 release makes it.
TEST(QuantisedFolder, tensors_and_config_have_to_agree) {
  const test::TempFolder folder("bare");
  for (const auto& [type, found] : {std::pair{DType::F8E4M3, "is F8_E4M3"}, {DType::NVFP4, "is U8"}}) {
    const fs::path path = folder.path / found;
    convert(kTiny, path, {.type = type, .overrides = {}});
    Json config = parse_json(read_file((path / "config.json").string()));
    config.set("quantization_config", Json());
    test::write_text(path / "config.json", write_json(config));
    try {
      read_config(*Checkpoint::open(path));
      ADD_FAILURE() << found;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr(std::string(found) + ", and config.json has no quantization_config"));
    }
  }
  // The table alone in FP8, which a key of its own says.
  convert(kTiny, folder.path / "table",
          {.type = DType::BF16, .overrides = {{"*ngram_embedding*", DType::F8E4M3}}});
  const auto c = Checkpoint::open(folder.path / "table");
  EXPECT_EQ(read_config(*c).quantization.kind, Quantization::None);
  EXPECT_TRUE(read_config(*c).ple.fp8);
}

}  // namespace
}  // namespace quern
