// An answer as the bytes of HTTP/1.1.
#pragma once

#include <string>

#include "server/http.h"

namespace quern {

struct HttpFraming {
  bool keep = false;  // the connection stays open behind the answer
  bool chunked =
      false;  // else a finished answer has a Content-Length, and another one ends with the connection
  bool is_1_1 = true;  // the client's version
};

void append_http_head(std::string& wire, const HttpOutput& out, const HttpFraming& framing);
// What `out` holds of the body, and its end where it is finished.
void append_http_body(std::string& wire, const HttpOutput& out, bool chunked);

}  // namespace quern
