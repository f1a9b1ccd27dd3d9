// What a request head must be before anything acts on it. Beast parses heads leniently in places where two
// parsers that disagree on a message's length let one request hide in another; this check is strict, looks at
// the raw bytes, and comes first:
//
//   CRLF line ends only; no NUL, no control characters; a method of token characters; a target that starts
//   with / or http:// (or is *), without spaces; HTTP/1.0 or 1.1; no obsolete line folding; no white space before a colon;
//   exactly one Host in HTTP/1.1; at most one Content-Length, digits only; Transfer-Encoding only in
//   HTTP/1.1, only "chunked", once, and never beside Content-Length; no Content-Encoding.
#pragma once

#include <cstddef>
#include <string_view>

namespace quern {

struct HeadFault {
  int status = 0;  // 0: the head is good
  std::string_view reason;
};

// `head` ends with the empty line.
HeadFault check_http_head(std::string_view head, size_t max_fields = 200);

// The authority of a target in absolute form, http://HOST:PORT/PATH; empty where it has another form.
std::string_view http_authority(std::string_view target);

// Whether the beginning of a head holds what no head may, so that waiting for its end is in vain.
bool is_no_http_head(std::string_view bytes);

// Offset just past the empty line that ends the head, or npos.
size_t find_http_head_end(std::string_view bytes);

}  // namespace quern
