#include "model/ngram_hash.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "checkpoint/gguf.h"

namespace quern {
namespace {

constexpr size_t kNgram = 3;  // read_config refuses any other
constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;

uint64_t splitmix64(uint64_t x) {
  x += kGamma;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t d = 2; d <= n / d; ++d) {
    if (n % d == 0) return false;
  }
  return true;
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Int64 values wherever they lie in the file: it promises no alignment.
std::vector<int64_t> integers(Checkpoint& checkpoint, const std::string& name, int64_t n) {
  const TensorView& t = checkpoint.take(name, {n});
  if (t.dtype != DType::I64)
    throw Error(fmt::format("{}: expected dtype I64, found {}", checkpoint.where(t), quern::name(t.dtype)));
  std::vector<int64_t> out(static_cast<size_t>(n));
  std::memcpy(out.data(), t.bytes.data(), out.size() * sizeof(int64_t));
  return out;
}

void compare(const std::string& where, std::span<const int64_t> found, std::span<const int64_t> expected) {
  const auto i =
      static_cast<size_t>(std::mismatch(found.begin(), found.end(), expected.begin()).first - found.begin());
  if (i == found.size()) return;
  throw Error(fmt::format("{}: entry {}: expected {} by the config's seed, base and vocabulary, found {}",
                          where, i, expected[i], found[i]));
}

}  // namespace

void ngram_rows(const NgramHash& hash, std::span<const int32_t> context, std::span<int64_t> rows) {
  QUERN_CHECK(!context.empty() && rows.size() == hash.vocab.size(), "ngram rows: wrong sizes");
  const size_t heads = rows.size() / (kNgram - 1);
  uint64_t m = static_cast<uint64_t>(context[0]) * static_cast<uint64_t>(hash.multiplier[0]);
  bool cut = false;
  for (size_t i = 1; i < kNgram; ++i) {
    cut = cut || i >= context.size() || context[i] == hash.eos;
    m ^= static_cast<uint64_t>(cut ? hash.eos : context[i]) * static_cast<uint64_t>(hash.multiplier[i]);
    for (size_t h = (i - 1) * heads; h < i * heads; ++h) {
      int64_t r = static_cast<int64_t>(m) % hash.vocab[h];
      if (r < 0) r += hash.vocab[h];
      rows[h] = r + hash.offset[h];
    }
  }
}

NgramTable compute_ngram_table(const Config& config) {
  const PleConfig& p = config.ple;
  NgramTable table;
  table.hash.eos = p.eos_id;
  const uint64_t range = std::max<uint64_t>(1, static_cast<uint64_t>(INT64_MAX / config.vocab / 2));
  for (size_t i = 0; i < kNgram; ++i) {
    const uint64_t x = splitmix64(static_cast<uint64_t>(p.seed) + kGamma * (i + 1));
    table.hash.multiplier[i] = static_cast<int64_t>(2 * (x % range) + 1);
  }
  int64_t prime = p.vocab_base - 1, sum = 0;
  for (int h = 0; h < p.n_heads(); ++h) {
    do ++prime;
    while (!is_prime(prime));
    table.hash.vocab.push_back(prime);
    table.hash.offset.push_back(sum);
    sum += prime;
  }
  table.rows = round_up(sum, p.row_multiple);
  return table;
}

namespace {

// GGUF has the constants and not the recipe (neither seed nor base): they are taken as they are, and every row
// they can name must lie in the table.
NgramTable read_gguf_table(Checkpoint& checkpoint, const Config& config) {
  const GgufFile& f = *checkpoint.gguf();
  const auto n_heads = static_cast<size_t>(config.ple.n_heads());
  const std::vector<int64_t> multipliers = f.integers("qwen4exp.ple.layer_multipliers");
  NgramTable table;
  table.hash.eos = config.ple.eos_id;
  table.hash.vocab = f.integers("qwen4exp.ple.head_vocab_sizes");
  table.hash.offset = f.integers("qwen4exp.ple.head_offsets");
  if (multipliers.size() != kNgram)
    f.fail("qwen4exp.ple.layer_multipliers",
           fmt::format("expected {} numbers, found {}", kNgram, multipliers.size()));
  if (table.hash.vocab.size() != n_heads)
    f.fail("qwen4exp.ple.head_vocab_sizes",
           fmt::format("expected {} sizes, found {}", n_heads, table.hash.vocab.size()));
  if (table.hash.offset.size() != n_heads)
    f.fail("qwen4exp.ple.head_offsets",
           fmt::format("expected {} offsets, found {}", n_heads, table.hash.offset.size()));
  std::copy(multipliers.begin(), multipliers.end(), table.hash.multiplier.begin());
  const std::string name =
      fmt::format("layers.{}.ple.ple_embedding.ngram_embedding.weight", config.ple.layer);
  const TensorView* rows = checkpoint.find(name);
  if (rows == nullptr || rows->shape.size() != 2)
    throw Error(
        fmt::format("{}: tensor 'per_layer_token_embd.weight' is missing", checkpoint.path().string()));
  table.rows = rows->shape[0];
  for (size_t h = 0; h < n_heads; ++h) {
    const int64_t vocab = table.hash.vocab[h], offset = table.hash.offset[h];
    if (vocab < 1 || offset < 0 || offset > table.rows || vocab > table.rows - offset)
      f.fail("qwen4exp.ple.head_offsets",
             fmt::format("head {} reads rows {} to {} of a table of {}", h, offset,
                         static_cast<double>(offset) + static_cast<double>(vocab), table.rows));
  }
  return table;
}

}  // namespace

NgramTable read_ngram_table(Checkpoint& checkpoint, const Config& config) {
  if (checkpoint.gguf() != nullptr) return read_gguf_table(checkpoint, config);
  const NgramTable table = compute_ngram_table(config);
  const std::string stem = fmt::format("layers.{}.ple.ple_embedding.", config.ple.layer);
  const auto check = [&](std::string_view name, std::span<const int64_t> expected) {
    const std::string full = stem + std::string(name);
    const std::vector<int64_t> found = integers(checkpoint, full, static_cast<int64_t>(expected.size()));
    compare(checkpoint.where(*checkpoint.find(full)), found, expected);
  };
  check("layer_multipliers", table.hash.multiplier);
  check("ngram_heads_vocab_sizes", table.hash.vocab);
  check("ngram_heads_offsets", table.hash.offset);
  return table;
}

}  // namespace quern
