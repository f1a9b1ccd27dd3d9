// The transport alone: framing, limits, deadlines, streams, disconnects, draining, TLS.
#include "server/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "server/client.h"
#include "server/http_head.h"

namespace quern {
namespace {

using testing::Client;
using testing::Reply;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Streams what it is given; records how it ended.
class Feed : public Responder {
 public:
  void pull(HttpOutput& out) override {
    std::lock_guard lock(mutex);
    if (!out.begun)
      out.begin({.status = 200, .content_type = "text/event-stream", .headers = {}, .body = {}});
    out.body += queued;
    queued.clear();
    if (finished) out.finish();
    ++pulls;
  }
  std::string ping() override { return ": ping\n\n"; }
  void gone() override { left = Clock::now(), is_gone = true; }
  void add(const std::string& text, bool last = false) {
    std::lock_guard lock(mutex);
    queued += text;
    finished = last;
  }

  std::mutex mutex;
  std::string queued;
  bool finished = false;
  int pulls = 0;
  std::atomic<bool> is_gone{false};
  std::atomic<Clock::time_point> left{};
};

class HttpTest : public ::testing::Test {
 protected:
  HttpOptions options() {
    HttpOptions o;
    o.port = 0;
    o.limits.header_bytes = 8 << 10;
    o.limits.body_bytes = 100'000;
    o.limits.header_seconds = 0.5;
    o.limits.body_stall_seconds = 0.5;
    o.limits.idle_seconds = 1;
    o.limits.ping_seconds = 0.2;
    o.limits.write_stall_seconds = 1;
    o.error = [](const HttpRequest&, int status, std::string_view reason) {
      HttpResponse r;
      r.status = status, r.body = "{\"error\":\"" + std::string(reason) + "\"}";
      return r;
    };
    o.gate = [](const HttpRequest& head, HttpResponse& response) {
      if (head.path != "/denied") return false;
      response.status = 401, response.body = "no";
      return true;
    };
    o.handle = [this](std::shared_ptr<Exchange> exchange) {
      const HttpRequest& request = exchange->request;
      if (request.path == "/stream") {
        auto feed = std::make_shared<Feed>();
        {
          std::lock_guard lock(mutex);
          feeds.push_back(feed), exchanges.push_back(exchange);
        }
        exchange->start(feed);
      } else if (request.path == "/later") {
        threads.emplace_back([exchange] {
          std::this_thread::sleep_for(std::chrono::milliseconds(100));
          HttpResponse r;
          r.body = "later";
          exchange->respond(r);
        });
      } else {
        HttpResponse r;
        r.body = request.method + " " + request.path + " " + request.body;
        exchange->respond(r);
      }
    };
    return o;
  }
  void start(HttpOptions o) {
    server = std::make_unique<HttpServer>(std::move(o));
    server->start();
  }
  void SetUp() override { start(options()); }
  void TearDown() override {
    for (auto& t : threads) t.join();
    server.reset();
  }
  std::shared_ptr<Feed> feed(size_t i) {
    for (int tries = 0; tries < 2000; ++tries) {
      {
        std::lock_guard lock(mutex);
        if (feeds.size() > i) return feeds[i];
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("no stream began");
  }
  Reply raw(const std::string& text) {
    Client c(server->port());
    c.send(text);
    return c.read();
  }

  std::unique_ptr<HttpServer> server;
  std::mutex mutex;
  std::vector<std::shared_ptr<Feed>> feeds;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  std::vector<std::thread> threads;
};

TEST_F(HttpTest, one_connection_takes_many_requests) {
  Client c(server->port());
  for (int i = 0; i < 50; ++i) {
    const std::string body(static_cast<size_t>(i) * 1999, 'x');
    const Reply r = c.post("/echo", body);
    ASSERT_EQ(r.status, 200);
    ASSERT_EQ(r.body, "POST /echo " + body);
  }
  EXPECT_EQ(c.get("/later").body, "later");
  EXPECT_EQ(server->stats().connections_total, 1);
}

TEST_F(HttpTest, pipelined_requests_are_answered_in_order) {
  Client c(server->port());
  c.send(Client::request_text("GET", "/later") + Client::request_text("POST", "/b", "two") +
         Client::request_text("GET", "/c"));
  EXPECT_EQ(c.read().body, "later");
  EXPECT_EQ(c.read().body, "POST /b two");
  EXPECT_EQ(c.read().body, "GET /c ");
}

TEST_F(HttpTest, chunked_bodies_are_joined_however_they_arrive) {
  const std::string text =
      "POST /e HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;a=b\r\n "
      "\r\n5\r\nworld\r\n0\r\n\r\n";
  EXPECT_EQ(raw(text).body, "POST /e hello world");
  Client c(server->port());
  for (char byte : text) {
    c.send({&byte, 1});
    if (byte == '\n') std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(c.read().body, "POST /e hello world");
}

TEST_F(HttpTest, head_has_no_body_and_the_same_length) {
  Client c(server->port());
  const Reply r = c.request("HEAD", "/x");
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.header("content-length"), "8");
  EXPECT_EQ(c.get("/y").body, "GET /y ");
}

TEST_F(HttpTest, expect_continue_is_answered_before_the_body) {
  Client c(server->port());
  c.send("POST /e HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  c.send("ok");
  EXPECT_EQ(c.read().body, "POST /e ok");
  Client d(server->port());
  d.send("POST /denied HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(d.read().status, 401);
  // HTTP/1.0 knows no 100: the first answer is the answer.
  EXPECT_EQ(raw("POST /e HTTP/1.0\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\nok").body,
            "POST /e ok");
}

// Who speaks TLS to a plain port, or ends lines without CR, need not wait for the header's time.
TEST_F(HttpTest, what_cannot_become_a_head_is_answered_at_once) {
  for (const std::string& text :
       {std::string("\x16\x03\x01\x02\x00\x01\x00", 7), std::string("GET / HTTP/1.1\nHost: a\n\n"),
        std::string("GET / HTTP/1.1\r\nX: \x7f"), std::string("GET / HTTP/1.1\r\rHost")}) {
    const auto begin = Clock::now();
    EXPECT_EQ(raw(text).status, 400) << text;
    EXPECT_LT(since(begin), 0.4) << text;
  }
  const std::string good = "GET /ok HTTP/1.1\r\nHost: x\r\nA:\tb\r\n\r\n";
  for (size_t n = 1; n < good.size(); ++n) {
    Client c(server->port());
    c.send(good.substr(0, n));
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    c.send(good.substr(n));
    EXPECT_EQ(c.read().status, 200) << n;
  }
}

TEST_F(HttpTest, ambiguous_framing_is_refused_and_the_connection_closed) {
  const std::string go = "POST /e HTTP/1.1\r\nHost: x\r\n";
  const std::vector<std::pair<std::string, int>> cases = {
      {go + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {go + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400},
      {go + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
      {go + "Content-Length: 5, 5\r\n\r\nhello", 400},
      {go + "Content-Length: +5\r\n\r\nhello", 400},
      {go + "Content-Length: 0x5\r\n\r\nhello", 400},
      {go + "Content-Length: 99999999999999999999\r\n\r\nhello", 400},
      {go + "Content-Length : 5\r\n\r\nhello", 400},
      {go + " Content-Length: 5\r\n\r\nhello", 400},
      {go + "X: a\r\n b\r\n\r\n", 400},
      {go + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
      {go + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501},
      {go + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501},
      {"POST /e HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {go + "Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n", 400},
      {go + "Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n", 400},
      {go + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello\r\n0\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET ftp://evil/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http:// HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET http://user@evil/ HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT evil:443 HTTP/1.1\r\nHost: evil:443\r\n\r\n", 400},
      {"PRI * HTTP/2.0\r\n\r\n", 505},
      {go + "Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello", 415},
      {go + "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n", 408},  // no line end yet
      {go + "Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n", 400},
      {go + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400},
      {go + "Transfer-Encoding: chunked\r\n\r\n 5\r\nhello\r\n0\r\n\r\n", 400},
      {go + "Transfer-Encoding:\x0b"
            "chunked\r\n\r\n0\r\n\r\n",
       400},
      {go + "Transfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n0\r\n\r\n", 400},
      {"GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {std::string("GET /a\0 HTTP/1.1\r\nHost: a\r\n\r\n", 30), 400},
      {"GET / HTTP/1.1\nHost: a\n\r\n\r\n", 400},
      {"\x16\x03\x01 hello\r\n\r\n", 400},
  };
  for (const auto& [text, status] : cases) {
    Client c(server->port());
    c.send(text);
    const Reply r = c.read();
    EXPECT_EQ(r.status, status) << text;
    EXPECT_EQ(r.header("connection"), "close") << text;
    EXPECT_TRUE(c.wait_closed(3)) << text;
  }
  EXPECT_EQ(Client(server->port()).get("/ok").status, 200);
}

// What a proxy is sent (RFC 9112, 3.2.2): the target names the host, and the Host header does not count.
TEST_F(HttpTest, targets_in_absolute_form_name_their_host) {
  server.reset();
  HttpOptions o = options();
  o.handle = [](std::shared_ptr<Exchange> exchange) {
    const HttpRequest& q = exchange->request;
    HttpResponse r;
    r.body = q.path + " " + q.query + " " + std::string(q.header("host"));
    exchange->respond(r);
  };
  start(o);
  EXPECT_EQ(raw("GET http://a:80/b/c?d=http://e HTTP/1.1\r\nHost: evil\r\n\r\n").body,
            "/b/c d=http://e a:80");
  EXPECT_EQ(raw("GET HTTP://a HTTP/1.1\r\nHost: evil\r\n\r\n").body, "/  a");
  EXPECT_EQ(raw("GET https://a?x HTTP/1.0\r\n\r\n").body, "/ x a");
}

TEST_F(HttpTest, what_is_too_large_gets_its_own_error) {
  EXPECT_EQ(raw("GET / HTTP/1.1\r\nHost: x\r\nX: " + std::string(20000, 'a') + "\r\n\r\n").status, 431);
  EXPECT_EQ(raw("GET /" + std::string(20000, 'a')).status, 431);
  std::string many = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 300; ++i) many += "a: b\r\n";
  EXPECT_EQ(raw(many + "\r\n").status, 431);
  EXPECT_EQ(raw("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000000\r\n\r\n").status, 413);
  EXPECT_EQ(raw("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n40000\r\n" +
                std::string(0x40000, 'a') + "\r\n0\r\n\r\n")
                .status,
            413);
  Client c(server->port());
  EXPECT_EQ(c.post("/", std::string(100'000, 'a')).status, 200);
  EXPECT_EQ(c.post("/", std::string(100'001, 'a')).status, 413);
}

TEST_F(HttpTest, slow_clients_are_timed_out_with_an_error) {
  auto begin = Clock::now();
  Client head(server->port()), body(server->port()), silent(server->port());
  head.send("GET / HTTP/1.1\r\nHo");
  body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  std::thread drip([&] {  // a byte now and then does not extend the deadline of the head
    for (int i = 0; i < 20; ++i) {
      if (!head.send("s")) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  const Reply head_reply = head.read(), body_reply = body.read();
  EXPECT_EQ(head_reply.status, 408);
  EXPECT_EQ(body_reply.status, 408);
  EXPECT_LT(since(begin), 2);
  EXPECT_TRUE(silent.wait_closed(3));
  drip.join();
  Client idle(server->port());
  EXPECT_EQ(idle.get("/").status, 200);
  EXPECT_TRUE(idle.wait_closed(3));
}

TEST_F(HttpTest, truncated_requests_end_quietly) {
  const std::string whole = Client::request_text("POST", "/e", "0123456789");
  for (size_t n = 0; n < whole.size(); n += 7) {
    Client c(server->port());
    c.send(whole.substr(0, n));
    ::shutdown(c.fd(), SHUT_WR);
    EXPECT_TRUE(c.wait_closed(3)) << n;
  }
  EXPECT_EQ(Client(server->port()).get("/ok").status, 200);
}

TEST_F(HttpTest, a_stream_joins_what_has_queued_and_pings_in_silence) {
  Client c(server->port());
  c.send(Client::request_text("GET", "/stream"));
  auto f = feed(0);
  Reply r;
  ASSERT_TRUE(c.read_head(r));
  EXPECT_EQ(r.status, 200);
  EXPECT_EQ(r.header("transfer-encoding"), "chunked");
  EXPECT_EQ(c.next_event()->comment, ": ping");
  for (int i = 0; i < 1000; ++i) f->add("data: " + std::to_string(i) + "\n\n");
  exchanges[0]->wake();
  for (int i = 0; i < 1000; ++i) {
    auto e = c.next_event();
    while (e && !e->comment.empty()) e = c.next_event();
    ASSERT_TRUE(e);
    ASSERT_EQ(e->data, std::to_string(i));
  }
  EXPECT_LT(f->pulls, 100);
  f->add("data: end\n\n", true);
  exchanges[0]->wake();
  auto last = c.next_event();
  while (last && !last->comment.empty()) last = c.next_event();
  EXPECT_EQ(last->data, "end");
  EXPECT_FALSE(c.next_event());
  EXPECT_TRUE(c.stream_complete());
  EXPECT_EQ(c.get("/again").status, 200);
}

TEST_F(HttpTest, a_disconnect_is_noticed_within_100_ms_also_with_pipelined_bytes) {
  for (int pipelined = 0; pipelined < 2; ++pipelined) {
    auto c = std::make_unique<Client>(server->port());
    c->send(Client::request_text("GET", "/stream"));
    auto f = feed(static_cast<size_t>(pipelined));
    if (pipelined) c->send(Client::request_text("GET", "/next"));
    std::this_thread::sleep_for(std::chrono::milliseconds(120));
    const auto begin = Clock::now();
    c->close();
    while (!f->is_gone && since(begin) < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(f->is_gone);
    EXPECT_LT(since(begin), 0.1);
  }
}

TEST_F(HttpTest, hundreds_of_clients_dropped_at_once_are_all_noticed) {
  constexpr size_t kClients = 400;  // descriptors: two a client
  std::vector<std::unique_ptr<Client>> clients;
  for (size_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Client>(server->port()));
    clients.back()->send(Client::request_text("GET", "/stream"));
  }
  feed(kClients - 1);
  const auto begin = Clock::now();
  clients.clear();
  for (size_t i = 0; i < kClients; ++i)
    while (!feeds[i]->is_gone && since(begin) < 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_LT(since(begin), 1);
  for (size_t i = 0; i < kClients; ++i) EXPECT_TRUE(feeds[i]->is_gone);
  while (server->stats().connections && since(begin) < 5)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(server->stats().connections, 0);
}

TEST_F(HttpTest, a_client_that_never_reads_is_dropped_and_costs_nobody_else) {
  Client stuck(server->port()), other(server->port());
  const int small = 4096;
  ::setsockopt(stuck.fd(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  stuck.send(Client::request_text("GET", "/stream"));
  auto f = feed(0);
  const auto begin = Clock::now();
  while (!f->is_gone && since(begin) < 10) {
    {
      std::lock_guard lock(f->mutex);
      if (f->queued.size() < 65536) f->queued += std::string(65536, 'x');
    }
    exchanges[0]->wake();
    const auto asked = Clock::now();
    EXPECT_EQ(other.get("/x").status, 200);
    EXPECT_LT(since(asked), 0.5);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_TRUE(f->is_gone);
  EXPECT_EQ(server->stats().stalled, 1);
}

TEST_F(HttpTest, too_many_connections_get_503_and_retry_after) {
  server.reset();
  HttpOptions o = options();
  o.limits.connections = 3;
  start(o);
  Client a(server->port()), b(server->port()), c(server->port());
  EXPECT_EQ(a.get("/").status, 200);
  EXPECT_EQ(b.get("/").status, 200);
  EXPECT_EQ(c.get("/").status, 200);
  Client d(server->port());
  const Reply r = d.read();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.header("retry-after"), "1");
  a.close();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(Client(server->port()).get("/").status, 200);
}

// Many times: the last stream may end while the server still tells the connections of it.
TEST_F(HttpTest, half_a_head_does_not_hold_up_the_end) {
  server.reset();
  HttpOptions o = options();
  o.limits.header_seconds = 30;
  start(o);
  Client half(server->port());
  half.send("GET / HTTP/1.1\r\nHo");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto begin = Clock::now();
  EXPECT_TRUE(server->drain(20));
  EXPECT_LT(since(begin), 10);
}

TEST_F(HttpTest, draining_finishes_streams_and_takes_no_new_connections) {
  for (size_t round = 0; round < 100; ++round) {
    SCOPED_TRACE(round);
    server = std::make_unique<HttpServer>(options());
    server->start();
    Client busy(server->port()), idle(server->port());
    EXPECT_EQ(idle.get("/").status, 200);
    busy.send(Client::request_text("GET", "/stream"));
    auto f = feed(round);
    std::atomic<bool> drained{false};
    std::thread drain([&] { drained = server->drain(30); });
    EXPECT_TRUE(idle.wait_closed(20));
    EXPECT_THROW(Client(server->port()).get("/"), std::runtime_error);
    EXPECT_FALSE(drained);
    f->add("data: end\n\n", true);
    exchanges[round]->wake();
    Reply r = busy.read();
    EXPECT_TRUE(r.complete);
    EXPECT_NE(r.body.find("data: end"), std::string::npos);
    drain.join();
    ASSERT_TRUE(drained);
  }
}

TEST_F(HttpTest, a_response_header_cannot_be_split) {
  server.reset();
  HttpOptions o = options();
  o.handle = [](std::shared_ptr<Exchange> exchange) {
    HttpResponse r;
    r.headers = {{"X-Bad", "a\r\nX-Forged: b"}, {"X-Good", "c"}};
    exchange->respond(r);
  };
  start(o);
  const Reply r = Client(server->port()).get("/");
  EXPECT_EQ(r.head.find("Forged"), std::string::npos);
  EXPECT_EQ(r.header("x-good"), "c");
}

TEST_F(HttpTest, faults_of_the_configuration_name_the_cause) {
  HttpOptions o = options();
  o.host = "203.0.113.7";
  EXPECT_THROW(HttpServer{o}, Error);
  o = options();
  o.port = server->port();
  try {
    HttpServer again(o);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(o.port)), std::string::npos);
  }
  o = options();
  o.tls_certificate = "/nonexistent.pem";
  EXPECT_THROW(HttpServer{o}, Error);
  o.tls_key = "/nonexistent.pem";
  EXPECT_THROW(HttpServer{o}, Error);
}

TEST(HttpHead, good_heads_pass) {
  EXPECT_EQ(check_http_head("GET / HTTP/1.1\r\nHost: a\r\n\r\n").status, 0);
  EXPECT_EQ(check_http_head("GET / HTTP/1.0\r\n\r\n").status, 0);
  EXPECT_EQ(check_http_head("OPTIONS * HTTP/1.1\r\nHost: [::1]:80\r\nX:\r\nY: \t a b \r\n\r\n").status, 0);
}

}  // namespace
}  // namespace quern
