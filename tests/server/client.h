// A small blocking HTTP client for tests: raw bytes out, parsed answers in, so that malformed requests can be
// sent and a stream can be read event by event.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace quern::testing {

struct Reply {
  int status = 0;
  std::string head;  // as received
  std::string body;  // chunking removed
  bool complete = false;

  std::string header(std::string_view name) const {
    size_t at = head.find("\r\n");
    while (at != std::string::npos && at + 2 < head.size()) {
      const size_t begin = at + 2, end = head.find("\r\n", begin);
      const std::string line = head.substr(begin, end - begin);
      const size_t colon = line.find(':');
      if (colon == name.size() && strncasecmp(line.c_str(), std::string(name).c_str(), colon) == 0)
        return line.substr(std::min(line.size(), colon + 2));
      at = end;
    }
    return {};
  }
  Json json() const { return parse_json(body); }
};

// One `event:`/`data:` block, or a comment line.
struct SseEvent {
  std::string event, data, comment;
};

class Client {
 public:
  explicit Client(uint16_t port, double timeout_seconds = 20) : timeout_(timeout_seconds) {
    fd_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      throw std::runtime_error(std::string("connect: ") + std::strerror(errno));
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  }
  ~Client() { close(); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }
  int fd() const { return fd_; }

  // False where the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }

  static std::string request_text(std::string_view method, std::string_view target,
                                  std::string_view body = {}, std::string_view headers = {}) {
    std::string text = std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n" +
                       std::string(headers);
    if (!body.empty() || method == "POST")
      text += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
    return text + "\r\n" + std::string(body);
  }
  Reply request(std::string_view method, std::string_view target, std::string_view body = {},
                std::string_view headers = {}) {
    send(request_text(method, target, body, headers));
    return read(method == "HEAD");
  }
  Reply get(std::string_view target, std::string_view headers = {}) {
    return request("GET", target, {}, headers);
  }
  Reply post(std::string_view target, std::string_view body, std::string_view headers = {}) {
    return request("POST", target, body, headers);
  }

  // A whole answer; `complete` is false where the connection ended first (status 0: before the head).
  Reply read(bool is_head = false) {
    Reply reply;
    if (!read_head(reply)) return reply;
    if (is_head || reply.status == 204) {
      reply.complete = true;
    } else if (chunked_) {
      while (read_chunk(reply.body)) {
      }
      reply.complete = chunks_done_;
    } else if (const std::string length = reply.header("content-length"); !length.empty()) {
      const size_t n = std::stoull(length);
      while (buffer_.size() < n && fill()) {
      }
      reply.body = buffer_.substr(0, n);
      reply.complete = buffer_.size() >= n;
      buffer_.erase(0, n);
    } else {
      while (fill()) {
      }
      reply.body = std::move(buffer_);
      buffer_.clear();
      reply.complete = true;
    }
    return reply;
  }

  // For streams: the head, then events one at a time until the body ends.
  bool read_head(Reply& reply) {
    size_t end;
    while (true) {
      while ((end = buffer_.find("\r\n\r\n")) == std::string::npos)
        if (!fill()) return false;
      reply.head = buffer_.substr(0, end + 2);
      buffer_.erase(0, end + 4);
      reply.status = std::stoi(reply.head.substr(9, 3));
      if (reply.status != 100) break;
    }
    chunked_ = reply.header("transfer-encoding") == "chunked";
    chunks_done_ = false;
    events_.clear();
    const std::string length = reply.header("content-length");
    length_ = length.empty() ? 0 : std::stoull(length);
    return true;
  }
  std::optional<SseEvent> next_event() {
    size_t end;
    while ((end = events_.find("\n\n")) == std::string::npos)
      if (!read_chunk(events_)) return std::nullopt;
    SseEvent event;
    std::string block = events_.substr(0, end + 1);
    events_.erase(0, end + 2);
    for (size_t at = 0; at < block.size();) {
      const size_t stop = block.find('\n', at);
      const std::string line = block.substr(at, stop - at);
      at = stop + 1;
      if (line.starts_with("event: "))
        event.event = line.substr(7);
      else if (line.starts_with("data: "))
        event.data += line.substr(6);
      else if (line.starts_with(":"))
        event.comment = line;
      else
        throw std::runtime_error("not an SSE line: " + line);
    }
    return event;
  }
  std::vector<SseEvent> read_events() {
    std::vector<SseEvent> events;
    while (auto event = next_event()) events.push_back(std::move(*event));
    return events;
  }
  bool stream_complete() const { return chunks_done_; }

  // True once the server has closed the connection, false if it has not within `seconds`.
  bool wait_closed(double seconds) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    char bytes[4096];
    while (std::chrono::steady_clock::now() < end) {
      pollfd p{fd_, POLLIN, 0};
      if (::poll(&p, 1, 20) > 0 && ::recv(fd_, bytes, sizeof bytes, 0) <= 0) return true;
    }
    return false;
  }

 private:
  bool fill() {
    pollfd p{fd_, POLLIN, 0};
    if (::poll(&p, 1, static_cast<int>(timeout_ * 1000)) <= 0)
      throw std::runtime_error("the server is silent");
    char bytes[65536];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    buffer_.append(bytes, static_cast<size_t>(n));
    return true;
  }
  // A piece of a chunked body, or the whole of one with a length (a stream that was over before it began).
  bool read_chunk(std::string& out) {
    if (chunks_done_) return false;
    if (!chunked_) {
      while (buffer_.size() < length_)
        if (!fill()) return false;
      out += buffer_.substr(0, length_);
      buffer_.erase(0, length_);
      chunks_done_ = true;
      return true;
    }
    size_t end;
    while ((end = buffer_.find("\r\n")) == std::string::npos)
      if (!fill()) return false;
    const size_t n = std::stoull(buffer_.substr(0, end), nullptr, 16);
    while (buffer_.size() < end + 2 + n + 2)
      if (!fill()) return false;
    out.append(buffer_, end + 2, n);
    buffer_.erase(0, end + 2 + n + 2);
    if (n == 0) chunks_done_ = true;
    return n != 0;
  }

  int fd_ = -1;
  double timeout_;
  std::string buffer_, events_;
  size_t length_ = 0;
  bool chunked_ = false, chunks_done_ = false;
};

}  // namespace quern::testing
