#include "base/json_repair.h"

#include <cstdint>
#include <cstring>

namespace quern {
namespace {

// The value of four hexadecimal digits at json[at], or -1.
int32_t hex4(const std::string& json, size_t at) {
  if (at + 4 > json.size()) return -1;
  int32_t value = 0;
  for (size_t i = at; i < at + 4; ++i) {
    const char c = json[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace

size_t repair_surrogates(std::string& json) {
  size_t repaired = 0;
  for (size_t at = json.find('\\'); at != std::string::npos && at + 1 < json.size();
       at = json.find('\\', at)) {
    if (json[at + 1] != 'u') {
      at += 2;
      continue;
    }
    const int32_t unit = hex4(json, at + 2);
    if (unit < 0xD800 || unit > 0xDFFF) {
      at += 2;
      continue;
    }
    if (unit < 0xDC00 && at + 7 < json.size() && json[at + 6] == '\\' && json[at + 7] == 'u') {
      const int32_t low = hex4(json, at + 8);
      if (low >= 0xDC00 && low <= 0xDFFF) {
        at += 12;
        continue;
      }
    }
    std::memcpy(&json[at + 2], "fffd", 4);
    ++repaired;
    at += 6;
  }
  return repaired;
}

Json parse_repaired_json(std::string text, const JsonLimits& limits) {
  repair_surrogates(text);
  return parse_json(text, limits);
}

}  // namespace quern
