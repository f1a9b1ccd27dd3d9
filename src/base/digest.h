// XXH3-128 (Y. Collet) of bytes that come in pieces. Equal bytes give equal digests on every machine; it guards against
// accidents, not against forgery.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace quern {

using Digest = std::array<uint8_t, 16>;

class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(const Hasher&) = delete;
  Hasher& operator=(const Hasher&) = delete;

  void add(const void* bytes, size_t n);
  void add(std::string_view text) { add(text.data(), text.size()); }
  Digest digest() const;  // of all so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest digest_of(const void* bytes, size_t n);
uint64_t digest64_of(const void* bytes, size_t n);  // XXH3-64, for short headers
std::string hex(const Digest& digest);              // 32 lower-case digits

}  // namespace quern
