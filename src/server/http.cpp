// The server and its connections; requests and exchanges are in http_exchange.cpp, the bytes of an answer in
// http_wire.cpp.
#include "server/http.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/log.h"
#include "server/body_budget.h"
#include "server/http_head.h"
#include "server/http_wire.h"

namespace quern {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;
using namespace asio::experimental::awaitable_operators;

namespace {

constexpr auto kNever = Clock::time_point::max();

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

}  // namespace

// ---- State ----

namespace {

class ConnectionBase {
 public:
  virtual ~ConnectionBase() = default;
  // Both from any thread. An idle connection closes when told to drain.
  virtual void close() = 0;
  virtual void drain() = 0;
};

}  // namespace

struct HttpServer::State : std::enable_shared_from_this<HttpServer::State> {
  explicit State(HttpOptions o) : options(std::move(o)), context(std::max(1, options.io_threads)) {}

  HttpOptions options;
  asio::io_context context;
  // Threads that return when the last connection has ended would leave what is posted after it undone, and held.
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::optional<asio::ssl::context> tls;
  std::optional<tcp::acceptor> acceptor;
  std::vector<std::thread> threads;
  uint16_t port = 0;

  std::atomic<bool> draining{false}, stopped{false};
  std::atomic<int64_t> bodies_bytes{0};
  std::atomic<int64_t> connections_total{0}, refused{0}, requests{0}, disconnects{0}, stalled{0},
      bad_heads{0};

  mutable std::mutex mutex;
  std::condition_variable ended;
  std::unordered_map<const void*, std::weak_ptr<ConnectionBase>> connections;

  asio::awaitable<void> accept();

  // The open connections, held: dropping the last reference under the mutex would lock it twice.
  std::vector<std::shared_ptr<ConnectionBase>> open() const {
    std::vector<std::shared_ptr<ConnectionBase>> held;
    std::lock_guard lock(mutex);
    for (const auto& [key, weak] : connections)
      if (auto connection = weak.lock()) held.push_back(std::move(connection));
    return held;
  }
  bool wait_closed(double seconds) {
    std::unique_lock lock(mutex);
    return ended.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return connections.empty(); });
  }
};

namespace {

// The Exchange of one connection. It keeps the I/O context alive: an engine may still hold it when the server
// is gone.
template <class Owner>
class ConnectionExchange : public Exchange, public std::enable_shared_from_this<ConnectionExchange<Owner>> {
 public:
  ConnectionExchange(std::shared_ptr<Owner> owner, asio::any_io_executor executor)
      : owner_(std::move(owner)), timer_(executor) {}

  using Exchange::leave;
  using Exchange::responder;
  asio::steady_timer& timer() { return timer_; }
  std::atomic<bool>& woken() { return woken_; }

 private:
  void wake_connection() override {
    asio::post(timer_.get_executor(), [self = this->shared_from_this()] { self->timer_.cancel(); });
  }

  std::shared_ptr<Owner> owner_;
  asio::steady_timer timer_;
};

// One client. `Stream` is a tcp::socket or a TLS stream over one.
template <class Server, class Stream>
class Connection : public ConnectionBase, public std::enable_shared_from_this<Connection<Server, Stream>> {
 public:
  using ExchangeType = ConnectionExchange<Server>;
  static constexpr bool kTls = !std::is_same_v<Stream, tcp::socket>;

  template <class... Args>
  Connection(std::shared_ptr<Server> server, Args&&... args)
      : server_(std::move(server)),
        stream_(std::forward<Args>(args)...),
        deadline_timer_(stream_.get_executor()),
        buffer_(server_->options.limits.header_bytes + (128 << 10)) {
    error_code ec;
    const auto endpoint = socket().remote_endpoint(ec);
    if (!ec) peer_ = endpoint.address().to_string();
    socket().set_option(tcp::no_delay(true), ec);
    // Bounds what the kernel keeps for a client that does not read.
    socket().set_option(asio::socket_base::send_buffer_size(128 << 10), ec);
  }

  ~Connection() override {
    std::lock_guard lock(server_->mutex);
    server_->connections.erase(this);
    server_->ended.notify_all();
  }

  void start() {
    asio::co_spawn(
        stream_.get_executor(), [self = this->shared_from_this()] { return self->run(); },
        [self = this->shared_from_this()](std::exception_ptr e) { self->finish(e); });
  }

  void close() override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] { self->shut(); });
  }
  void drain() override {
    asio::post(stream_.get_executor(), [self = this->shared_from_this()] {
      if (self->idle_)
        self->shut();
      else if (self->reading_head_)  // half a head is no request under way: it has a second to become one
        self->set_deadline(std::min(self->deadline_, after(1)));
    });
  }

 private:
  tcp::socket& socket() {
    if constexpr (kTls)
      return stream_.next_layer();
    else
      return stream_;
  }
  const HttpLimits& limits() const { return server_->options.limits; }

  void shut() {
    closed_ = true;
    error_code ec;
    socket().cancel(ec);
    socket().close(ec);
    deadline_timer_.cancel();
  }

  void finish(std::exception_ptr e) {
    try {
      if (e) std::rethrow_exception(e);
    } catch (const std::exception& error) {
      if (!closed_) log(LogLevel::Debug, "connection from {}: {}", peer_, error.what());
    }
    shut();
  }

  // Cancels whatever the socket is doing when `when` has passed; the socket stays open so that an error can
  // be sent. The timer is only re-armed for an earlier time: later ones are looked at when it fires.
  void set_deadline(Clock::time_point when) {
    deadline_ = when;
    timed_out_ = false;
    if (when < armed_) arm(when);
  }
  void arm(Clock::time_point when) {
    armed_ = when;
    deadline_timer_.expires_at(when);
    deadline_timer_.async_wait([weak = this->weak_from_this()](error_code ec) {
      auto self = weak.lock();
      if (ec || !self || self->closed_) return;
      self->armed_ = kNever;
      if (self->deadline_ <= Clock::now()) {
        self->timed_out_ = true;
        error_code ignored;
        self->socket().cancel(ignored);
      } else if (self->deadline_ != kNever) {
        self->arm(self->deadline_);
      }
    });
  }

  asio::awaitable<void> run() {
    auto self = this->shared_from_this();
    error_code ec;
    if constexpr (kTls) {
      set_deadline(after(limits().header_seconds));
      co_await stream_.async_handshake(asio::ssl::stream_base::server,
                                       asio::redirect_error(asio::use_awaitable, ec));
      if (ec) co_return;
    }
    bool first = true;
    while (!closed_ && !(server_->draining && !first)) {
      const bool go_on = co_await serve_one(first);
      first = false;
      if (!go_on) break;
    }
    if constexpr (kTls) {
      if (!closed_) {
        set_deadline(after(1));
        co_await stream_.async_shutdown(asio::redirect_error(asio::use_awaitable, ec));
      }
    }
  }

  // Reads a head into buffer_. Returns its size, 0 where the connection is to end without a word, or -status.
  asio::awaitable<int64_t> read_head(bool first) {
    error_code ec;
    set_deadline(after(first ? limits().header_seconds : limits().idle_seconds));
    bool begun = false;
    size_t searched = 0;
    while (true) {
      std::string_view bytes(static_cast<const char*>(buffer_.data().data()), buffer_.size());
      if (!begun && bytes.starts_with("\r\n")) {  // an empty line before a request is allowed
        buffer_.consume(2);
        continue;
      }
      if (!bytes.empty() && !begun) {
        begun = true;
        idle_ = false;
        set_deadline(after(limits().header_seconds));
      }
      const size_t end = find_http_head_end(bytes.substr(searched));
      if (end != std::string_view::npos) {
        if (searched + end > limits().header_bytes) co_return -431;
        co_return static_cast<int64_t>(searched + end);
      }
      if (bytes.size() > limits().header_bytes) co_return -431;
      // No end will come of a head that is none: a TLS greeting, lines that end without CR.
      if (is_no_http_head(bytes.substr(searched))) co_return -400;
      searched = bytes.size() < 3 ? 0 : bytes.size() - 3;
      idle_ = !begun;
      if (idle_ && server_->draining) co_return 0;
      const auto space = buffer_.prepare(std::min<size_t>(16 << 10, buffer_.max_size() - buffer_.size()));
      const size_t n = co_await stream_.async_read_some(space, asio::redirect_error(asio::use_awaitable, ec));
      if (ec) co_return begun&& timed_out_ ? -408 : 0;
      buffer_.commit(n);
    }
  }

  // True: the connection can take another request.
  asio::awaitable<bool> serve_one(bool first) {
    idle_ = true;
    reading_head_ = true;
    const int64_t head_size = co_await read_head(first);
    idle_ = reading_head_ = false;
    if (head_size == 0) co_return false;
    ++server_->requests;
    const auto begin = Clock::now();
    auto exchange = std::make_shared<ExchangeType>(server_, stream_.get_executor());
    HttpRequest& request = exchange->request;
    request.peer = peer_;
    request.tls = kTls;
    if (head_size < 0) {
      ++server_->bad_heads;
      const int status = static_cast<int>(-head_size);
      co_return co_await refuse(
          exchange, begin, status,
          status == 408 ? "the request header took too long"
          : status == 400
              ? "header: expected lines of text that end with CR LF; is this TLS on a port without it?"
              : "the request header is larger than the limit");
    }
    const std::string_view head(static_cast<const char*>(buffer_.data().data()),
                                static_cast<size_t>(head_size));
    if (const HeadFault fault = check_http_head(head); fault.status) {
      ++server_->bad_heads;
      co_return co_await refuse(exchange, begin, fault.status, fault.reason);
    }

    bhttp::request_parser<bhttp::buffer_body> parser;
    parser.header_limit(static_cast<std::uint32_t>(limits().header_bytes + 1024));
    parser.body_limit(boost::none);  // looked at below, where the request is known
    error_code ec;
    buffer_.consume(parser.put(asio::buffer(buffer_.data().data(), head.size()), ec));
    if ((ec && ec != bhttp::error::need_more) || !parser.is_header_done()) {
      ++server_->bad_heads;
      co_return co_await refuse(exchange, begin, 400, "the request header is malformed");
    }
    ec = {};
    read_fields(parser.get(), request);
    const bool keep = parser.keep_alive();
    is_1_1_ = parser.get().version() == 11;
    is_head_ = request.method == "HEAD";

    const bool has_body = !parser.is_done();
    HttpResponse early;
    if (server_->options.gate && server_->options.gate(request, early)) {
      if (has_body) early.close = true;
      exchange->respond(std::move(early));
      const bool go_on = co_await answer(exchange, begin, keep && !has_body);
      if (!go_on && has_body) co_await linger();
      co_return go_on;
    }
    if (has_body && parser.content_length().value_or(0) > limits().body_bytes)
      co_return co_await refuse(exchange, begin, 413, "the body is larger than the limit");

    BodyBudget budget(server_->bodies_bytes, limits().bodies_bytes);
    if (has_body) {
      const std::string_view expect = request.header("expect");
      if (!expect.empty() && is_1_1_) {  // of HTTP/1.0 an expectation is ignored (RFC 9110, 10.1.1)
        if (!beast::iequals(expect, "100-continue"))
          co_return co_await refuse(exchange, begin, 417, "expected Expect to be 100-continue");
        static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
        set_deadline(after(limits().write_stall_seconds));
        co_await asio::async_write(stream_, asio::buffer(kContinue.data(), kContinue.size()),
                                   asio::redirect_error(asio::use_awaitable, ec));
        if (ec) co_return false;
      }
      const int status = co_await read_body(parser, request.body, budget);
      if (status == 413) co_return co_await refuse(exchange, begin, 413, "the body is larger than the limit");
      if (status == 408) co_return co_await refuse(exchange, begin, 408, "the request body took too long");
      if (status == 503)
        co_return co_await refuse(exchange, begin, 503, "too many request bodies are held in memory");
      if (status == 400) co_return co_await refuse(exchange, begin, 400, "the body's framing is malformed");
      if (status != 200) {
        ++server_->disconnects;
        co_return false;
      }
    }
    set_deadline(kNever);
    server_->options.handle(exchange);
    co_return co_await answer(exchange, begin, keep);
  }

  template <class Message>
  static void read_fields(const Message& message, HttpRequest& request) {
    request.method = std::string(message.method_string());
    request.target = std::string(message.target());
    // Of a target in absolute form the authority is the Host, whatever the header says (RFC 9112, 3.2.2).
    const std::string authority(http_authority(request.target));
    std::string_view local = request.target;
    if (!authority.empty()) {
      local.remove_prefix(local.find("://") + 3 + authority.size());
      request.headers.emplace_back("host", authority);
    }
    const size_t mark = local.find('?');
    request.path = local.substr(0, mark);
    if (!authority.empty() && request.path.empty()) request.path = "/";
    if (mark != std::string_view::npos) request.query = local.substr(mark + 1);
    for (const auto& field : message) {
      std::string name(field.name_string());
      for (char& c : name)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
      if (name == "host" && !authority.empty()) continue;
      request.headers.emplace_back(std::move(name), std::string(field.value()));
    }
  }

  // 200, an error status, or 0 where the client left.
  template <class Parser>
  asio::awaitable<int> read_body(Parser& parser, std::string& body, BodyBudget& budget) {
    std::vector<char> piece(64 << 10);
    const auto end = after(limits().body_seconds);
    error_code ec;
    while (!parser.is_done()) {
      auto& sink = parser.get().body();
      sink.data = piece.data();
      sink.size = piece.size();
      if (buffer_.size() > 0) {
        const size_t used = parser.put(buffer_.data(), ec);
        buffer_.consume(used);
        if (ec == bhttp::error::need_buffer) ec = {};
        const size_t got = piece.size() - sink.size;
        if (got && !budget.take(got)) co_return 503;
        body.append(piece.data(), got);
        if (body.size() > limits().body_bytes) co_return 413;
        if (ec == bhttp::error::need_more || (!ec && used == 0 && got == 0)) {
          ec = {};
        } else if (ec) {
          co_return 400;
        } else {
          continue;
        }
        if (parser.is_done()) break;
      }
      if (buffer_.size() == buffer_.max_size()) co_return 400;
      set_deadline(std::min(end, after(limits().body_stall_seconds)));
      const auto space = buffer_.prepare(std::min<size_t>(64 << 10, buffer_.max_size() - buffer_.size()));
      const size_t n = co_await stream_.async_read_some(space, asio::redirect_error(asio::use_awaitable, ec));
      if (ec) co_return timed_out_ ? 408 : 0;
      buffer_.commit(n);
    }
    co_return 200;
  }

  asio::awaitable<bool> refuse(std::shared_ptr<ExchangeType> exchange, Clock::time_point begin, int status,
                               std::string_view reason) {
    HttpResponse response = server_->options.error(exchange->request, status, reason);
    response.close = true;
    exchange->respond(std::move(response));
    co_await answer(exchange, begin, false);
    co_await linger();
    co_return false;
  }

  // Lets a client that is still sending read the answer before the connection is reset under it.
  asio::awaitable<void> linger() {
    if (closed_) co_return;
    error_code ec;
    if constexpr (!kTls) socket().shutdown(tcp::socket::shutdown_send, ec);
    const auto end = after(1);
    std::vector<char> sink(16 << 10);
    for (size_t total = 0; total < (4u << 20);) {
      set_deadline(end);
      const size_t n = co_await socket().async_read_some(asio::buffer(sink),
                                                         asio::redirect_error(asio::use_awaitable, ec));
      if (ec) break;
      total += n;
    }
  }

  // Runs the answer; true where the connection can be kept.
  asio::awaitable<bool> answer(std::shared_ptr<ExchangeType> exchange, Clock::time_point begin, bool keep) {
    set_deadline(kNever);
    auto written = std::make_shared<Written>();
    auto result = co_await (pump(exchange, keep, written) || watch_peer());
    const bool complete = result.index() == 0 && std::get<0>(result) && written->complete;
    if (!complete) {
      if (written->stalled)
        ++server_->stalled;
      else
        ++server_->disconnects;
      exchange->leave();
    }
    if (server_->options.done) {
      const std::chrono::duration<double> took = Clock::now() - begin;
      server_->options.done(exchange->request, complete ? written->status : 0, written->body_bytes,
                            took.count());
    }
    co_return complete && written->keep;
  }

  struct Written {
    int status = 0;
    size_t body_bytes = 0;
    bool complete = false, keep = false, stalled = false;
  };

  asio::awaitable<bool> pump(std::shared_ptr<ExchangeType> exchange, bool keep,
                             std::shared_ptr<Written> written) {
    HttpOutput out;
    std::string wire;
    bool head_sent = false, chunked = false;
    error_code ec;
    std::shared_ptr<Responder> responder;
    while (true) {
      exchange->woken() = false;
      if (!responder) responder = exchange->responder();
      if (responder) responder->pull(out);
      if (out.aborted) co_return false;
      if (out.begun && !head_sent) {
        head_sent = true;
        keep = keep && !out.head.close && !server_->draining && (is_1_1_ || out.finished);
        chunked = !out.finished && is_1_1_;
        written->status = out.head.status;
        append_http_head(wire, out, {.keep = keep, .chunked = chunked, .is_1_1 = is_1_1_});
        if (is_head_) out.finished = true;
      }
      if (head_sent) {
        written->body_bytes += out.body.size();
        if (!is_head_) append_http_body(wire, out, chunked);
        out.body.clear();
      }
      if (!wire.empty()) {
        set_deadline(after(limits().write_stall_seconds));
        co_await asio::async_write(stream_, asio::buffer(wire),
                                   asio::redirect_error(asio::use_awaitable, ec));
        if (ec) {
          written->stalled = timed_out_;
          co_return false;
        }
        set_deadline(kNever);
        wire.clear();
        if (wire.capacity() > (256 << 10)) wire.shrink_to_fit();
        if (out.body.capacity() > (256 << 10)) out.body.shrink_to_fit();
      }
      if (out.finished) {
        written->complete = true;
        written->keep = keep;
        co_return true;
      }
      if (exchange->woken()) continue;
      auto& timer = exchange->timer();
      timer.expires_after(
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(limits().ping_seconds)));
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      const auto cancelled = co_await asio::this_coro::cancellation_state;
      if (cancelled.cancelled() != asio::cancellation_type::none || closed_) co_return false;
      if (!ec && head_sent && responder) out.body += responder->ping();
    }
  }

  // Returns when the client has closed its side. Readable bytes without an end are a pipelined request (or a
  // TLS record): they stay where they are, and the socket is looked at again every 50 ms.
  asio::awaitable<void> watch_peer() {
    error_code ec;
    asio::steady_timer pause(stream_.get_executor());
    while (!closed_) {
      co_await socket().async_wait(tcp::socket::wait_read, asio::redirect_error(asio::use_awaitable, ec));
      if (closed_ || (ec && ec != asio::error::operation_aborted)) co_return;
      if (timed_out_) co_return;
      pollfd fd{socket().native_handle(), POLLRDHUP, 0};
      if (::poll(&fd, 1, 0) > 0 && (fd.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))) co_return;
      pause.expires_after(std::chrono::milliseconds(50));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
    }
  }

  std::shared_ptr<Server> server_;
  Stream stream_;
  asio::steady_timer deadline_timer_;
  Clock::time_point deadline_ = kNever, armed_ = kNever;
  beast::flat_buffer buffer_;
  std::string peer_;
  bool idle_ = true, reading_head_ = false, closed_ = false, timed_out_ = false, is_1_1_ = true,
       is_head_ = false;
};

}  // namespace

asio::awaitable<void> HttpServer::State::accept() {
  auto self = shared_from_this();
  error_code ec;
  while (!draining) {
    auto strand = asio::make_strand(context);
    tcp::socket socket = co_await acceptor->async_accept(asio::any_io_executor(strand),
                                                         asio::redirect_error(asio::use_awaitable, ec));
    if (draining || ec == asio::error::operation_aborted || ec == asio::error::bad_descriptor) co_return;
    if (ec) {  // out of descriptors, most likely: wait for some to close
      log(LogLevel::Warn, "accept: {}", ec.message());
      asio::steady_timer pause(context, std::chrono::milliseconds(100));
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
      continue;
    }
    ++connections_total;
    size_t open;
    {
      std::lock_guard lock(mutex);
      open = connections.size();
    }
    if (open >= static_cast<size_t>(options.limits.connections)) {
      ++refused;
      HttpResponse response = options.error({}, 503, "too many connections");
      const std::string wire = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: " + response.content_type +
                               "\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: " +
                               std::to_string(response.body.size()) + "\r\n\r\n" + response.body;
      socket.non_blocking(true, ec);
      socket.write_some(asio::buffer(wire), ec);
      socket.shutdown(tcp::socket::shutdown_send, ec);
      continue;
    }
    std::shared_ptr<ConnectionBase> connection;
    const auto begin = [&](auto made) {
      {
        std::lock_guard lock(mutex);
        connections.emplace(made.get(), made);
      }
      made->start();
    };
    if (tls)
      begin(
          std::make_shared<Connection<State, asio::ssl::stream<tcp::socket>>>(self, std::move(socket), *tls));
    else
      begin(std::make_shared<Connection<State, tcp::socket>>(self, std::move(socket)));
  }
}

// ---- HttpServer ----

HttpServer::HttpServer(HttpOptions options) : state_(std::make_shared<State>(std::move(options))) {
  State& s = *state_;
  QUERN_CHECK(s.options.handle && s.options.error, "the transport needs a handler and an error format");
  if (s.options.tls_certificate.empty() != s.options.tls_key.empty())
    throw Error("TLS needs both a certificate and a key");
  if (!s.options.tls_certificate.empty()) {
    s.tls.emplace(asio::ssl::context::tls_server);
    error_code ec;
    s.tls->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                       asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                       asio::ssl::context::no_tlsv1_1);
    s.tls->use_certificate_chain_file(s.options.tls_certificate, ec);
    if (ec) throw Error("TLS certificate " + s.options.tls_certificate + ": " + ec.message());
    s.tls->use_private_key_file(s.options.tls_key, asio::ssl::context::pem, ec);
    if (ec) throw Error("TLS key " + s.options.tls_key + ": " + ec.message());
  }
  const std::string where = s.options.host + ":" + std::to_string(s.options.port);
  error_code ec;
  tcp::resolver resolver(s.context);
  const auto found =
      resolver.resolve(s.options.host, std::to_string(s.options.port), tcp::resolver::passive, ec);
  if (ec || found.empty()) throw Error("cannot listen on " + where + ": " + ec.message());
  const tcp::endpoint endpoint = found.begin()->endpoint();
  s.acceptor.emplace(s.context);
  s.acceptor->open(endpoint.protocol(), ec);
  if (!ec) s.acceptor->set_option(asio::socket_base::reuse_address(true), ec);
  if (!ec) s.acceptor->bind(endpoint, ec);
  if (!ec) s.acceptor->listen(4096, ec);
  if (ec) throw Error("cannot listen on " + where + ": " + ec.message());
  s.port = s.acceptor->local_endpoint().port();
}

HttpServer::~HttpServer() { stop(); }

uint16_t HttpServer::port() const { return state_->port; }

void HttpServer::start() {
  State& s = *state_;
  asio::co_spawn(
      s.context, [self = state_] { return self->accept(); }, asio::detached);
  for (int i = 0; i < std::max(1, s.options.io_threads); ++i)
    s.threads.emplace_back([self = state_.get()] { self->context.run(); });
}

bool HttpServer::drain(double seconds) {
  State& s = *state_;
  if (!s.threads.empty()) {
    // The port is closed before the first connection is, and that may end by itself as soon as it sees `draining`: who
    // sees one end and comes back is refused at once.
    std::promise<void> closed;
    asio::post(s.context, [self = state_, &closed] {
      error_code ec;
      self->acceptor->close(ec);
      closed.set_value();
    });
    closed.get_future().wait();
  }
  s.draining = true;
  for (const auto& connection : s.open()) connection->drain();
  return s.wait_closed(seconds);
}

void HttpServer::stop() {
  State& s = *state_;
  if (s.stopped.exchange(true)) return;
  s.draining = true;
  if (!s.threads.empty()) {
    asio::post(s.context, [self = state_] {
      error_code ec;
      self->acceptor->close(ec);
    });
    for (const auto& connection : s.open()) connection->close();
    s.wait_closed(10);  // they end by themselves once closed; the wait only bounds a bug
    s.context.stop();
    for (std::thread& thread : s.threads) thread.join();
    s.threads.clear();
    // Handlers that were still waiting for their turn hold the state that holds them: they run here.
    s.work.reset();
    s.context.restart();
    s.context.poll();
  }
}

HttpStats HttpServer::stats() const {
  const State& s = *state_;
  HttpStats stats;
  {
    std::lock_guard lock(s.mutex);
    stats.connections = static_cast<int64_t>(s.connections.size());
  }
  stats.connections_total = s.connections_total;
  stats.refused = s.refused;
  stats.requests = s.requests;
  stats.disconnects = s.disconnects;
  stats.stalled = s.stalled;
  stats.bad_heads = s.bad_heads;
  return stats;
}

}  // namespace quern
