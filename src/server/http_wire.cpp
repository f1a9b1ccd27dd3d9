#include "server/http_wire.h"

#include <cstdio>
#include <ctime>

namespace quern {
namespace {

std::string http_date() {
  char text[64];
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &utc)};
}

}  // namespace

void append_http_head(std::string& wire, const HttpOutput& out, const HttpFraming& framing) {
  const HttpResponse& head = out.head;
  wire += "HTTP/1.1 ";
  wire += std::to_string(head.status);
  wire += ' ';
  wire += http_reason(head.status);
  wire += "\r\nDate: " + http_date() + "\r\nServer: quern\r\n";
  if (!head.content_type.empty() && head.status != 204) wire += "Content-Type: " + head.content_type + "\r\n";
  for (const auto& [name, value] : head.headers) {
    if (value.find_first_of("\r\n") != std::string::npos) continue;
    wire += name + ": " + value + "\r\n";
  }
  if (framing.chunked)
    wire += "Transfer-Encoding: chunked\r\n";
  else if (out.finished && head.status != 204)
    wire += "Content-Length: " + std::to_string(out.body.size()) + "\r\n";
  wire += framing.keep ? (framing.is_1_1 ? "" : "Connection: keep-alive\r\n") : "Connection: close\r\n";
  wire += "\r\n";
}

void append_http_body(std::string& wire, const HttpOutput& out, bool chunked) {
  if (!chunked) {
    wire += out.body;
    return;
  }
  if (!out.body.empty()) {
    char size[24];
    const int n = std::snprintf(size, sizeof size, "%zx\r\n", out.body.size());
    wire.append(size, static_cast<size_t>(n));
    wire += out.body;
    wire += "\r\n";
  }
  if (out.finished) wire += "0\r\n\r\n";
}

}  // namespace quern
