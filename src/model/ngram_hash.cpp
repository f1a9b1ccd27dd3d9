#include "model/ngram_hash.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"

namespace quern {
namespace {

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

void compare(const std::string& where, const std::vector<int64_t>& found,
             const std::vector<int64_t>& expected) {
  if (found == expected) return;
  size_t i = 0;
  while (found[i] == expected[i]) ++i;
  throw Error(fmt::format("{}: entry {}: expected {} by the config's seed, base and vocabulary, found {}",
                          where, i, expected[i], found[i]));
}

}  // namespace

void NgramHash::rows(std::span<const int32_t> context, std::span<int64_t> rows) const {
  QUERN_CHECK(!context.empty() && rows.size() == vocab.size(), "ngram rows: wrong sizes");
  uint64_t m = static_cast<uint64_t>(context[0]) * static_cast<uint64_t>(multipliers[0]);
  bool cut = false;
  for (int i = 1; i < ngram; ++i) {
    cut = cut || static_cast<size_t>(i) >= context.size() || context[static_cast<size_t>(i)] == eos_id;
    const int32_t t = cut ? eos_id : context[static_cast<size_t>(i)];
    m ^= static_cast<uint64_t>(t) * static_cast<uint64_t>(multipliers[static_cast<size_t>(i)]);
    for (int j = 0; j < heads_per_ngram; ++j) {
      const auto h = static_cast<size_t>((i - 1) * heads_per_ngram + j);
      int64_t r = static_cast<int64_t>(m) % vocab[h];
      if (r < 0) r += vocab[h];
      rows[h] = r + offset[h];
    }
  }
}

NgramHash compute_ngram_hash(const Config& config) {
  const PleConfig& p = config.ple;
  NgramHash hash;
  hash.ngram = p.ngram;
  hash.heads_per_ngram = p.heads_per_ngram;
  hash.eos_id = p.eos_id;
  const uint64_t range = std::max<uint64_t>(1, static_cast<uint64_t>(INT64_MAX / config.vocab / 2));
  for (int i = 0; i < p.ngram; ++i) {
    const uint64_t x = splitmix64(static_cast<uint64_t>(p.seed) + kGamma * static_cast<uint64_t>(i + 1));
    hash.multipliers.push_back(static_cast<int64_t>(2 * (x % range) + 1));
  }
  int64_t prime = p.vocab_base - 1, sum = 0;
  for (int h = 0; h < p.n_heads(); ++h) {
    do ++prime;
    while (!is_prime(prime));
    hash.vocab.push_back(prime);
    hash.offset.push_back(sum);
    sum += prime;
  }
  hash.table_rows = round_up(sum, p.row_multiple);
  return hash;
}

NgramHash read_ngram_hash(Checkpoint& checkpoint, const Config& config) {
  const PleConfig& p = config.ple;
  const NgramHash recipe = compute_ngram_hash(config);
  NgramHash hash = recipe;
  const std::string stem = fmt::format("layers.{}.ple.ple_embedding.", p.layer);
  const auto read = [&](std::string_view name, size_t n, const std::vector<int64_t>& expected) {
    const std::string full = stem + std::string(name);
    std::vector<int64_t> found = integers(checkpoint, full, static_cast<int64_t>(n));
    compare(checkpoint.where(*checkpoint.find(full)), found, expected);
    return found;
  };
  hash.multipliers = read("layer_multipliers", recipe.multipliers.size(), recipe.multipliers);
  hash.vocab = read("ngram_heads_vocab_sizes", recipe.vocab.size(), recipe.vocab);
  hash.offset = read("ngram_heads_offsets", recipe.offset.size(), recipe.offset);
  return hash;
}

}  // namespace quern
