#include "model/synthetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/mapped_file.h"
#include "checkpoint/safetensors_bytes.h"
#include "checkpoint/safetensors_writer.h"
#include "model/memory_plan.h"
#include "model/ngram_hash.h"
#include "model/synthetic_weights.h"
#include "model/tensor_list.h"
#include "ops/quant_formats.h"

namespace quern {
namespace {

Config config_of(const SyntheticOptions& options) {
  return parse_config(synthetic_config(options), "config.json");
}

// MODEL.md §3.3: 179 999 981 459 elements in the release, the vision tower's among them.
TEST(TensorList, full_geometry_has_the_released_elements) {
  const Config c =
      config_of({.full = true, .layers = 48, .experts = 512, .ngram_base = 20'000'000, .mtp = true});
  int64_t n = 0, tensors = 0;
  for (const ListedTensor& t : list_tensors(c)) {
    n += t.elements();
    tensors += 1;
    TensorGroup group;
    ASSERT_TRUE(group_of(t.name, group)) << t.name;
    EXPECT_EQ(group, t.group) << t.name;
  }
  const int64_t d = 1152, ff = 4304;
  const int64_t vision = 27 * (4 * d + 3 * d * d + 3 * d + d * d + d + ff * d + ff + d * ff + d) + d * 1536 +
                         d + 2304 * d + 2 * d + 4608 * 4608 + 4608 + 2560 * 4608 + 2560;
  EXPECT_EQ(n + vision, 179'999'981'459);
  EXPECT_EQ(tensors + 127 + 324 + 9, 1658);  // the table whole, the vision tower
}

TEST(Synthetic, weights_made_in_place_take_the_bytes_that_were_counted) {
  const Config config = config_of({.layers = 4});
  ThreadPool pool(1);
  Stream stream({}, pool);
  for (const SyntheticType experts :
       {SyntheticType::BF16, SyntheticType::FP8, SyntheticType::NVFP4, SyntheticType::Q4_0}) {
    const SyntheticWeightOptions options{.experts = experts, .table_rows = 1 << 12};
    const SyntheticBytes counted = synthetic_bytes(config, options);
    const ModelWeights w = synthetic_weights(config, options, stream);
    EXPECT_EQ(counted.device + counted.table, w.bytes);
    EXPECT_EQ(counted.table, (1 << 12) * config.ple.d_row);
  }
}

TEST(Synthetic, a_written_model_is_read_back_whole_on_any_number_of_threads) {
  const test::TempFolder folder("synthetic");
  const Config config = config_of({.experts = 3, .mtp = true});
  std::vector<std::string> files[2];
  for (const int threads : {1, 3}) {
    auto tensors = synthetic_tensors(config, 5, 4);
    for (ExportTensor& t : tensors) t.name = hugging_face_name(t.name);
    const auto out = folder.path / std::to_string(threads);
    std::filesystem::create_directory(out);
    ThreadPool pool(threads);
    write_safetensors(out, tensors, pool, {}, 4 << 20);
    std::set<std::filesystem::path> paths;
    for (const auto& e : std::filesystem::directory_iterator(out)) paths.insert(e.path());
    for (const auto& p : paths) files[threads > 1].push_back(read_file(p));
  }
  EXPECT_GT(files[0].size(), 3u);
  EXPECT_TRUE(files[0] == files[1]);

  const auto checkpoint = Checkpoint::open(folder.path / "1");
  for (const ListedTensor& t : list_tensors(config)) {
    if (t.group == TensorGroup::Table) {
      EXPECT_EQ(checkpoint->take_rows(t.name.substr(0, t.name.rfind('.')), t.shape[0], t.shape[1]).size(),
                4u);
      continue;
    }
    EXPECT_EQ(checkpoint->take(t.name).shape, t.shape) << t.name;
  }
  checkpoint->check_all_used();
  const NgramTable table = read_ngram_table(*checkpoint, config);
  EXPECT_EQ(table.hash.vocab[0], 503);
}

TEST(Synthetic, values_have_the_reference_makers_spread) {
  const Config config = config_of({});
  for (const ExportTensor& t : synthetic_tensors(config, 0, 1)) {
    if (!t.rows || t.elements() < 50000) continue;
    std::vector<float> v(static_cast<size_t>(t.elements()));
    t.rows(0, t.n_rows(), v.data());
    double sum = 0, squares = 0;
    for (const float x : v) {
      sum += x;
      squares += double{x} * x;
    }
    const double n = static_cast<double>(v.size());
    double expected = 1 / std::sqrt(static_cast<double>(t.cols()));
    if (t.name.find("embed") != std::string::npos) expected = 1;
    if (t.name.find("mix_weight_up") != std::string::npos)
      expected = 0.3 * std::sqrt(4.0 / static_cast<double>(t.cols()));
    EXPECT_NEAR(std::sqrt(squares / n), expected, 0.02 * expected) << t.name;
    EXPECT_NEAR(sum / n, 0, 0.02 * expected) << t.name;
  }
}

TEST(MemoryPlan, bundled_model_by_hand) {
  const auto checkpoint = Checkpoint::open(std::string(QUERN_SOURCE_DIR) + "/models/quern-tiny");
  const Config c = read_config(*checkpoint);
  const MemoryPlan p = plan_memory(*checkpoint, c, 2);
  int64_t all = 0;
  for (const TensorView& t : checkpoint->tensors()) all += static_cast<int64_t>(t.bytes.size());
  EXPECT_EQ(p.weights(), all);
  EXPECT_EQ(p.table, 64896 * 16 * 2);
  EXPECT_EQ(p.experts, int64_t{8} * 16 * 3 * 96 * 256 * 2);
  EXPECT_EQ(p.kv_per_token, 2 * 2 * 2 * 256 * 2);
  EXPECT_EQ(p.index_per_token, 2 * 128);  // a float32 key of 128 for each 4 tokens, in two layers
  EXPECT_EQ(p.delta_state, 6 * 6 * 128 * 128 * 4);
  EXPECT_EQ(p.table_per_token, 16 * 16 * 2);
  EXPECT_EQ(p.context_per_token(c, 10), 10 * (4096 + 256));
  EXPECT_EQ(p.context_per_token(c, 1000), 67 * 4096 + 1000 * 256);
}

}  // namespace
}  // namespace quern
