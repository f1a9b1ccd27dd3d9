#include "base/digest.h"

#include <fmt/format.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

namespace quern {
namespace {

Digest canonical(const XXH128_hash_t& hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  Digest digest;
  std::memcpy(digest.data(), bytes.digest, digest.size());
  return digest;
}

}  // namespace

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(new State) { XXH3_128bits_reset(&state_->xxh); }
Hasher::~Hasher() = default;

void Hasher::add(const void* bytes, size_t n) { XXH3_128bits_update(&state_->xxh, bytes, n); }
Digest Hasher::digest() const { return canonical(XXH3_128bits_digest(&state_->xxh)); }

Digest digest_of(const void* bytes, size_t n) { return canonical(XXH3_128bits(bytes, n)); }
uint64_t digest64_of(const void* bytes, size_t n) { return XXH3_64bits(bytes, n); }

std::string hex(const Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace quern
