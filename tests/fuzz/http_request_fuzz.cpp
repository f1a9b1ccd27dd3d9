// HTTP framing: the check that stands in front of Beast's parser. What it lets pass can be read in one way only: CRLF
// line ends, no folding, no NUL, and at most one field that tells the body's length.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "server/http_head.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = quern::find_http_head_end(text);
  if (end == std::string_view::npos) return 0;
  const std::string_view head = text.substr(0, end);
  const quern::HeadFault fault = quern::check_http_head(head);
  if (fault.status) {
    QUERN_CHECK(fault.status >= 400 && fault.status < 600 && !fault.reason.empty(), "a fault has a reason");
    return 0;
  }
  // What passes has no line that a lenient parser could read in another way.
  for (size_t i = 0; i < head.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(head[i]);
    QUERN_CHECK(c != 0 && (c != '\n' || (i > 0 && head[i - 1] == '\r')), "only CRLF ends a line");
    if (c == '\n' && i + 1 < head.size())
      QUERN_CHECK(head[i + 1] != ' ' && head[i + 1] != '\t', "no folded line");
  }
  std::string lower(head);
  for (char& ch : lower)
    if (ch >= 'A' && ch <= 'Z') ch = static_cast<char>(ch + 32);
  const auto count = [&](const char* name) {
    size_t n = 0;
    for (size_t at = lower.find(name); at != std::string::npos; at = lower.find(name, at + 1)) ++n;
    return n;
  };
  const size_t lengths = count("\r\ncontent-length:"), encodings = count("\r\ntransfer-encoding:");
  QUERN_CHECK(lengths + encodings <= 1, "one way to tell the body's length");
  return 0;
}
