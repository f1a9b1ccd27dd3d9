// How long a test waits for what must end soon, and how much it does. Sanitizers slow a program down up to tenfold, and
// the bounds with them.
#pragma once
#include <chrono>

namespace quern::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 10;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
constexpr int kSlowdown = 10;
#else
constexpr int kSlowdown = 1;
#endif
#else
constexpr int kSlowdown = 1;
#endif

constexpr bool kSanitized = kSlowdown > 1;

constexpr std::chrono::seconds patience(int seconds) { return std::chrono::seconds(seconds * kSlowdown); }

}  // namespace quern::test
