#include "server/http_head.h"

#include <algorithm>

namespace quern {
namespace {

bool is_token(char c) {
  if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return true;
  return std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

bool equals_nocase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

HeadFault check_request_line(std::string_view line, bool& is_1_1) {
  const size_t a = line.find(' '), b = line.rfind(' ');
  if (a == std::string_view::npos || a == b) return {400, "request line: expected METHOD TARGET HTTP/1.1"};
  const std::string_view method = line.substr(0, a), target = line.substr(a + 1, b - a - 1),
                         version = line.substr(b + 1);
  if (method.empty() || method.size() > 32 || !std::all_of(method.begin(), method.end(), is_token))
    return {400, "request line: the method is no token"};
  if (target.empty() || target.find(' ') != std::string_view::npos)
    return {400, "request line: the target holds a space or is empty"};
  for (unsigned char c : target)
    if (c <= 0x20 || c >= 0x7F || c == '#')
      return {400, "request line: the target holds an illegal character"};
  if (target[0] != '/' && target != "*" && http_authority(target).empty())
    return {400, "request line: expected a target that starts with / or http://"};
  if (version == "HTTP/1.1")
    is_1_1 = true;
  else if (version != "HTTP/1.0")
    return {505, "request line: expected HTTP/1.1 or HTTP/1.0"};
  return {};
}

}  // namespace

size_t find_http_head_end(std::string_view bytes) {
  const size_t at = bytes.find("\r\n\r\n");
  return at == std::string_view::npos ? at : at + 4;
}

bool is_no_http_head(std::string_view bytes) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(bytes[i]);
    if (c == '\n' && i > 0 && bytes[i - 1] != '\r') return true;
    if (c == '\r' && i + 1 < bytes.size() && bytes[i + 1] != '\n') return true;
    if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F) return true;
  }
  return false;
}

std::string_view http_authority(std::string_view target) {
  for (const std::string_view scheme : {std::string_view("http://"), std::string_view("https://")}) {
    if (target.size() <= scheme.size() || !equals_nocase(target.substr(0, scheme.size()), scheme)) continue;
    target.remove_prefix(scheme.size());
    const std::string_view authority = target.substr(0, target.find_first_of("/?"));
    return authority.find('@') == authority.npos ? authority : std::string_view();
  }
  return {};
}

HeadFault check_http_head(std::string_view head, size_t max_fields) {
  for (size_t i = 0; i < head.size(); ++i) {
    const unsigned char c = static_cast<unsigned char>(head[i]);
    if (c == '\n' && (i == 0 || head[i - 1] != '\r')) return {400, "header: a line ends without CR"};
    if (c == '\r' && (i + 1 == head.size() || head[i + 1] != '\n')) return {400, "header: a CR without LF"};
    if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F)
      return {400, "header: a control character"};
  }
  size_t at = head.find("\r\n");
  if (at == std::string_view::npos) return {400, "header: no line end"};
  bool is_1_1 = false;
  if (HeadFault fault = check_request_line(head.substr(0, at), is_1_1); fault.status) return fault;
  at += 2;

  size_t fields = 0, hosts = 0, lengths = 0, encodings = 0;
  while (true) {
    const size_t end = head.find("\r\n", at);
    if (end == std::string_view::npos) return {400, "header: it does not end with an empty line"};
    const std::string_view line = head.substr(at, end - at);
    at = end + 2;
    if (line.empty()) break;
    if (++fields > max_fields) return {431, "header: too many fields"};
    if (line[0] == ' ' || line[0] == '\t') return {400, "header: obsolete line folding"};
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0) return {400, "header: a line without a field name"};
    const std::string_view name = line.substr(0, colon), value = trim(line.substr(colon + 1));
    if (!std::all_of(name.begin(), name.end(), is_token))
      return {400, "header: a field name with an illegal character or a space before its colon"};
    if (equals_nocase(name, "host")) {
      ++hosts;
      if (value.find_first_of(" \t,/@") != std::string_view::npos) return {400, "header: Host is malformed"};
    } else if (equals_nocase(name, "content-length")) {
      ++lengths;
      if (value.empty() || value.size() > 18 ||
          !std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; }))
        return {400, "header: Content-Length is no number"};
    } else if (equals_nocase(name, "transfer-encoding")) {
      ++encodings;
      if (!equals_nocase(value, "chunked"))
        return {501, "header: expected Transfer-Encoding chunked or none"};
    } else if (equals_nocase(name, "content-encoding")) {
      if (!equals_nocase(value, "identity")) return {415, "header: expected no Content-Encoding"};
    } else if (equals_nocase(name, "upgrade") && equals_nocase(value, "h2c")) {
      continue;  // an offer, which may be ignored
    }
  }
  if (at != head.size()) return {400, "header: bytes after the empty line"};
  if (hosts > 1) return {400, "header: more than one Host"};
  if (is_1_1 && hosts == 0) return {400, "header: no Host"};
  if (lengths > 1) return {400, "header: more than one Content-Length"};
  if (encodings > 1) return {400, "header: more than one Transfer-Encoding"};
  if (encodings && lengths) return {400, "header: both Content-Length and Transfer-Encoding"};
  if (encodings && !is_1_1) return {400, "header: Transfer-Encoding in HTTP/1.0"};
  return {};
}

}  // namespace quern
