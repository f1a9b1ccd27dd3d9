// Who may ask: API keys, Host and Origin. The default is to deny; only /health answers without a key.
//
//   keys set      every route but /health needs one, as `Authorization: Bearer KEY`, `x-api-key: KEY`, or the password
//                 of `Authorization: Basic` (a browser's way to the page). Compared as SHA-256 digests, all of them, in
//                 constant time.
//   no keys       on a loopback address the Host must name this machine, so that a web page cannot reach the server
//                 through a name of its own that resolves here.
//   Origin        a page of another origin is refused unless listed; listed ones get CORS headers. Requests that carry
//                 a Bearer or x-api-key header come from programs and are not asked for their origin.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "server/http.h"

namespace quern {

struct AccessOptions {
  std::vector<std::string> keys;
  std::vector<std::string> cors_origins;  // exact, or "*"
  bool loopback = true;                   // what the server listens on
};

class Access {
 public:
  explicit Access(AccessOptions options);

  struct Verdict {
    int status = 200;  // 401, 403
    std::string reason;
    bool ask_basic = false;  // a browser may ask its user for the key
  };
  Verdict check(const HttpRequest& head) const;
  // Headers of a preflight's answer; empty where the origin is not listed.
  HttpHeaders preflight(const HttpRequest& head) const;
  // Headers every answer to a listed origin carries.
  HttpHeaders cors(const HttpRequest& head) const;
  bool needs_key() const { return !digests_.empty(); }

 private:
  using Digest = std::array<unsigned char, 32>;
  static Digest digest(std::string_view key);
  bool is_key(std::string_view key) const;
  bool is_listed(std::string_view origin) const;

  const AccessOptions options_;
  std::vector<Digest> digests_;
};

// 127.0.0.0/8, ::1, localhost.
bool is_loopback_name(std::string_view host);
// Keys of a file, one a line; empty lines and those that start with # are left out. Throws Error naming the path.
std::vector<std::string> read_keys(const std::string& path);

}  // namespace quern
