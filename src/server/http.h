// The transport: HTTP/1.1 and server-sent events over TCP or TLS. Knows no model and no route.
//
// Life of a request: the head is read under a deadline and checked (http_head.h); `gate` sees it and may
// answer at once (keys, Host, unknown route) before a byte of the body is read; the body is read under
// limits; `handle` gets the Exchange. The answer is produced by a Responder, which the connection asks for
// bytes whenever it is woken and the previous bytes are in the socket. So what a producer makes while the
// client is slow is joined into one write, and a client that never reads costs what its Responder holds and
// nothing else.
//
// Threads: a few I/O threads; everything of one connection, its Responder's calls included, runs in its
// strand.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace quern {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string target;   // as sent
  std::string path;     // without query, as sent: no decoding, no folding of case or slashes
  std::string query;    // without '?'
  HttpHeaders headers;  // names in lower case, in order
  std::string body;
  std::string peer;  // address of the client
  bool tls = false;

  // The first header of that lower-case name, or empty.
  std::string_view header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;
  std::string body;
  bool close = false;  // the connection ends after this answer
};

// What a Responder adds to the answer: begin once, before the first body byte; then text appended to `body`.
struct HttpOutput {
  std::string body;

  // If the answer finishes in the same pull it has a Content-Length, else it is chunked.
  void begin(HttpResponse response) {
    head = std::move(response);
    body = std::move(head.body);
    begun = true;
  }
  void finish() { finished = true; }
  // Cuts the connection where the answer cannot be completed truthfully.
  void abort() { aborted = true; }

  HttpResponse head;
  bool begun = false, finished = false, aborted = false;
};

class Responder {
 public:
  virtual ~Responder() = default;
  // Called in the connection's strand at the start and after each Exchange::wake, never while a write is
  // under way.
  virtual void pull(HttpOutput& out) = 0;
  // Bytes for a body that has been silent for the ping interval; empty: nothing may be sent.
  virtual std::string ping() { return {}; }
  // The client left, or took too long to read, before the answer was complete. Called at most once.
  virtual void gone() {}
};

// One request and its answer. Any thread; respond or start once.
class Exchange {
 public:
  virtual ~Exchange() = default;

  void respond(HttpResponse response);
  void start(std::shared_ptr<Responder> responder);
  // The Responder has something to say. Cheap when it was already woken.
  void wake();
  // The client is known to have left: work not begun need not begin.
  bool gone() const { return gone_.load(std::memory_order_relaxed); }

  HttpRequest request;

 protected:
  virtual void wake_connection() = 0;
  std::shared_ptr<Responder> responder();
  void leave();  // marks the client as gone and tells the Responder

  std::atomic<bool> woken_{false}, gone_{false};
  std::mutex mutex_;
  std::shared_ptr<Responder> responder_;
};

struct HttpLimits {
  size_t header_bytes = 64 << 10;
  size_t body_bytes = 64 << 20;
  size_t bodies_bytes = size_t{1} << 30;  // all bodies in memory together
  int connections = 2048;
  double header_seconds = 15;       // from the first byte (or connecting) to the end of the head
  double body_stall_seconds = 30;   // without a byte of the body
  double body_seconds = 600;        // whole body
  double idle_seconds = 75;         // between requests
  double write_stall_seconds = 60;  // the client reads nothing
  double ping_seconds = 10;         // silence in an answer before a ping
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free port
  int io_threads = 2;
  HttpLimits limits;
  std::string tls_certificate, tls_key;  // PEM files; both or none
  // May answer from the head alone: true with `response` filled. The connection closes if a body was
  // announced.
  std::function<bool(const HttpRequest& head, HttpResponse& response)> gate;
  // Gets complete requests, on an I/O thread: what is slow goes elsewhere.
  std::function<void(std::shared_ptr<Exchange>)> handle;
  // Dresses an error of the transport itself (400, 408, 413, 431, 503 …). Of the request as much is known as was
  // read: no path where its head is at fault.
  std::function<HttpResponse(const HttpRequest& request, int status, std::string_view reason)> error;
  // After each answer, for the request log and metrics: status 0 where the client left first.
  std::function<void(const HttpRequest&, int status, size_t body_bytes, double seconds)> done;
};

struct HttpStats {
  int64_t connections = 0;        // open now
  int64_t connections_total = 0;  // since start
  int64_t refused = 0;            // for the connection limit
  int64_t requests = 0, disconnects = 0, stalled = 0, bad_heads = 0;
};

class HttpServer {
 public:
  // Binds and listens; throws Error naming address and cause.
  explicit HttpServer(HttpOptions options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  void start();
  // No new connections; idle ones close; answers under way go on. Returns true once all have ended, false
  // after `seconds`.
  bool drain(double seconds);
  // Cuts every connection and joins.
  void stop();
  HttpStats stats() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// The reason phrase of a status code.
std::string_view http_reason(int status);

}  // namespace quern
