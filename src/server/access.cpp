#include "server/access.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>

#include "base/mapped_file.h"

namespace quern {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return out;
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t' || s.front() == '\r')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
  return s;
}

// Without the port, brackets kept off: "[::1]:80" → "::1".
std::string_view host_name(std::string_view host) {
  if (host.starts_with("["))
    return host.substr(1, host.find(']') == host.npos ? host.npos : host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

// The password of "user:password" in base64; empty where it is none.
std::string basic_password(std::string_view encoded) {
  if (encoded.empty() || encoded.size() % 4 || encoded.size() > 8192) return {};
  std::string text(encoded.size() / 4 * 3 + 1, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                reinterpret_cast<const unsigned char*>(encoded.data()),
                                static_cast<int>(encoded.size()));
  if (n < 0) return {};
  text.resize(static_cast<size_t>(n) - (encoded.ends_with("==") ? 2 : encoded.ends_with("=") ? 1 : 0));
  const size_t colon = text.find(':');
  return colon == std::string::npos ? std::string() : text.substr(colon + 1);
}

}  // namespace

bool is_loopback_name(std::string_view host) {
  const std::string name = lower(host_name(host));
  if (name == "localhost" || name == "::1" || name == "localhost.") return true;
  if (!name.starts_with("127.")) return false;
  return name.find_first_not_of("0123456789.") == std::string::npos &&
         std::count(name.begin(), name.end(), '.') == 3;
}

std::vector<std::string> read_keys(const std::string& path) {
  const std::string text = read_file(path, 1 << 20);
  std::vector<std::string> keys;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = trim(std::string_view(text).substr(at, end - at));
    if (!line.empty() && line[0] != '#') keys.emplace_back(line);
    at = end + 1;
  }
  if (keys.empty()) throw Error("API key file " + path + ": expected at least one key, found none");
  return keys;
}

Access::Access(AccessOptions options) : options_(std::move(options)) {
  for (const std::string& origin : options_.cors_origins)
    if (origin.empty()) throw Error("an allowed origin is empty: expected one like https://host:port, or *");
  for (const std::string& key : options_.keys) {
    if (key.empty()) throw Error("an API key is empty");
    digests_.push_back(digest(key));
  }
}

Access::Digest Access::digest(std::string_view key) {
  Digest d;
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), d.data());
  return d;
}

bool Access::is_key(std::string_view key) const {
  const Digest given = digest(key);
  int found = 0;
  for (const Digest& d : digests_) found |= CRYPTO_memcmp(d.data(), given.data(), d.size()) == 0;
  return found;
}

bool Access::is_listed(std::string_view origin) const {
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [&](const std::string& o) { return o == "*" || o == origin; });
}

Access::Verdict Access::check(const HttpRequest& head) const {
  if (head.path == "/health" && (head.method == "GET" || head.method == "HEAD")) return {};
  const std::string_view authorization = head.header("authorization"), direct = head.header("x-api-key");
  const std::string scheme = lower(authorization.substr(0, authorization.find(' ')));
  const std::string_view credentials =
      scheme.size() < authorization.size() ? trim(authorization.substr(scheme.size() + 1)) : "";
  const bool from_program = !direct.empty() || scheme == "bearer";
  if (needs_key()) {
    bool known = false;
    if (!direct.empty())
      known = is_key(direct);
    else if (scheme == "bearer")
      known = is_key(credentials);
    else if (scheme == "basic")
      known = is_key(basic_password(credentials));
    if (!known)
      return {401,
              authorization.empty() && direct.empty()
                  ? "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY"
                  : "the API key is not valid",
              head.path == "/" && authorization.empty()};
  } else if (options_.loopback && !is_loopback_name(head.header("host"))) {
    return {
        403,
        "Host: expected a name of this machine (localhost, 127.0.0.1, [::1]); set API keys to serve others"};
  }
  const std::string_view origin = head.header("origin");
  if (!origin.empty() && !(needs_key() && from_program) && !is_listed(origin)) {
    const std::string own = (head.tls ? "https://" : "http://") + std::string(head.header("host"));
    if (origin != own) return {403, "Origin: pages of this origin are not allowed; see --cors-origin"};
  }
  return {};
}

HttpHeaders Access::cors(const HttpRequest& head) const {
  const std::string_view origin = head.header("origin");
  if (origin.empty() || !is_listed(origin)) return {};
  return {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
}

HttpHeaders Access::preflight(const HttpRequest& head) const {
  HttpHeaders headers = cors(head);
  if (headers.empty() || head.header("access-control-request-method").empty()) return {};
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
  const std::string_view wanted = head.header("access-control-request-headers");
  headers.emplace_back("Access-Control-Allow-Headers",
                       wanted.empty() ? "authorization, content-type, x-api-key" : std::string(wanted));
  headers.emplace_back("Access-Control-Max-Age", "600");
  return headers;
}

}  // namespace quern
