// quern bench --url: load on a server that speaks OpenAI's chat/completions, and what its clients see of it. One thread,
// one epoll loop: at these rates the client must not be what is measured.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "commands.h"

namespace quern {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchFlags {
  std::string url, key, model = "bench", prompt = "Write a long story.";
  int concurrency = 16;
  double rate = 0;  // requests a second; 0: as many as `concurrency` allows
  int64_t requests = 0;
  double seconds = 0;
  int64_t max_tokens = 256;
  uint64_t seed = 1;
  bool json = false, whole = false;
};

double since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

struct Address {
  std::string host, port;
  sockaddr_storage address{};
  socklen_t size = 0;
};

Address resolve(const std::string& url) {
  Address a;
  if (!url.starts_with("http://")) throw Error("--url: expected http://HOST[:PORT], found " + url);
  std::string rest = url.substr(7);
  rest = rest.substr(0, rest.find('/'));
  const size_t colon = rest.rfind(':');
  a.host = rest.substr(0, colon);
  a.port = colon == std::string::npos ? "80" : rest.substr(colon + 1);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int rc = getaddrinfo(a.host.c_str(), a.port.c_str(), &hints, &found); rc != 0)
    throw Error("--url: " + a.host + ": " + gai_strerror(rc));
  std::memcpy(&a.address, found->ai_addr, found->ai_addrlen);
  a.size = found->ai_addrlen;
  freeaddrinfo(found);
  return a;
}

// One request on a connection of its own: sent, then read to the end of a chunked (or sized) body.
class BenchRequest {
 public:
  BenchRequest(const Address& to, std::string text, int epoll) : out_(std::move(text)), begun_(Clock::now()) {
    fd_ = ::socket(to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd_ < 0) throw Error(std::string("socket: ") + std::strerror(errno));
    const int one = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (::connect(fd_, reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0 && errno != EINPROGRESS)
      fail(std::strerror(errno));
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.ptr = this;
    if (!done_) ::epoll_ctl(epoll, EPOLL_CTL_ADD, fd_, &event);
    epoll_ = epoll;
  }
  ~BenchRequest() {
    if (fd_ >= 0) ::close(fd_);
  }
  BenchRequest(const BenchRequest&) = delete;
  BenchRequest& operator=(const BenchRequest&) = delete;

  void on_ready(uint32_t events) {
    if (done_) return;
    if ((events & EPOLLOUT) && !out_.empty()) {
      const ssize_t n = ::send(fd_, out_.data(), out_.size(), MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return fail(std::strerror(errno));
      if (n > 0) out_.erase(0, static_cast<size_t>(n));
      if (out_.empty()) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = this;
        ::epoll_ctl(epoll_, EPOLL_CTL_MOD, fd_, &event);
      }
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
    char bytes[65536];
    while (!done_) {
      const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
      if (n < 0 && errno == EAGAIN) return;
      if (n <= 0) return fail(n < 0 ? std::strerror(errno) : "the server closed the connection");
      take({bytes, static_cast<size_t>(n)});
    }
  }

  bool done() const { return done_; }
  const std::string& error() const { return error_; }
  double first = -1, total = 0;  // seconds
  std::vector<float> gaps;       // seconds between events with text
  int64_t tokens = 0;

 private:
  void fail(std::string why) {
    error_ = std::move(why);
    done_ = true;
  }

  void take(std::string_view bytes) {
    in_ += bytes;
    if (!head_done_) {
      const size_t end = in_.find("\r\n\r\n");
      if (end == std::string::npos) return;
      status_ = in_.size() > 12 ? std::atoi(in_.c_str() + 9) : 0;
      std::string head = in_.substr(0, end + 2);
      for (char& c : head) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      chunked_ = head.find("transfer-encoding: chunked") != std::string::npos;
      if (const size_t at = head.find("content-length: "); at != std::string::npos)
        length_ = std::strtoull(head.c_str() + at + 16, nullptr, 10);
      in_.erase(0, end + 4);
      head_done_ = true;
    }
    if (!chunked_) {
      if (in_.size() < length_) return;
      body_ = std::move(in_);
      if (body_.starts_with("data: ")) events();  // a stream that ended before its head went out has a length
      return finish();
    }
    size_t at = 0;
    while (true) {
      const size_t line = in_.find("\r\n", at);
      if (line == std::string::npos) break;
      const size_t n = std::strtoull(in_.c_str() + at, nullptr, 16);
      if (in_.size() < line + 2 + n + 2) break;
      body_.append(in_, line + 2, n);
      at = line + 2 + n + 2;
      if (n == 0) {
        events();
        return finish();
      }
    }
    in_.erase(0, at);
    events();
  }

  // Whole SSE events in body_; times those that carry text.
  void events() {
    size_t at = 0;
    for (size_t end; (end = body_.find("\n\n", at)) != std::string::npos; at = end + 2) {
      const std::string_view event(body_.data() + at, end - at);
      if (event.find("\"usage\":{") != std::string_view::npos) {
        read_usage(event);
        continue;
      }
      const bool text = event.find("\"content\":\"") != std::string_view::npos ||
                        event.find("\"reasoning_content\":\"") != std::string_view::npos ||
                        event.find("\"arguments\":\"") != std::string_view::npos;
      if (!text || event.find("\"role\"") != std::string_view::npos) continue;
      const auto now = Clock::now();
      if (first < 0)
        first = std::chrono::duration<double>(now - begun_).count();
      else
        gaps.push_back(std::chrono::duration<float>(now - last_).count());
      last_ = now;
    }
    body_.erase(0, at);
  }

  void read_usage(std::string_view text) {
    const size_t at = text.find("\"completion_tokens\":");
    if (at != std::string_view::npos) tokens = std::atoll(text.data() + at + 20);
  }

  void finish() {
    total = since(begun_);
    if (status_ != 200) return fail(fmt::format("status {}: {}", status_, body_.substr(0, 200)));
    if (!body_.empty()) read_usage(body_);
    done_ = true;
  }

  int fd_ = -1, epoll_ = -1, status_ = 0;
  std::string out_, in_, body_, error_;
  Clock::time_point begun_, last_;
  bool head_done_ = false, chunked_ = false, done_ = false;
  size_t length_ = 0;
};

// Nearest rank; 0 of none.
double percentile(std::vector<double>& values, double p) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(values.size())));
  const size_t i = std::min(values.size() - 1, rank ? rank - 1 : 0);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(i), values.end());
  return values[i];
}

Json summary(std::vector<double>& seconds) {
  Json out;
  double sum = 0, max = 0;
  for (double v : seconds) sum += v, max = std::max(max, v);
  out.set("mean_ms", seconds.empty() ? 0.0 : 1e3 * sum / static_cast<double>(seconds.size()));
  for (const auto& [name, p] : {std::pair{"p50_ms", 50.0}, {"p90_ms", 90.0}, {"p99_ms", 99.0}})
    out.set(name, 1e3 * percentile(seconds, p));
  out.set("max_ms", 1e3 * max);
  return out;
}

}  // namespace

int bench_url_main(int argc, char** argv) {
  CLI::App app("Measures a running server: load on its chat/completions, and what its clients see.");
  BenchFlags f;
  app.add_option("--url", f.url, "http://HOST:PORT of the server")->required();
  app.add_option("--api-key", f.key, "key to send");
  app.add_option("--model", f.model, "model to name")->capture_default_str();
  app.add_option("--prompt", f.prompt, "the user's message; a number is appended, so that prompts differ")
      ->capture_default_str();
  app.add_option("--max-tokens", f.max_tokens, "limit of each reply")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--concurrency", f.concurrency, "requests under way at most")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app.add_option("--rate", f.rate, "requests a second, at random times; 0: a new one whenever one ends")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--requests", f.requests,
                 "end after so many (default: 10 for each place, where --duration is not given)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_option("--duration", f.seconds, "start no more requests after so many seconds")
      ->check(CLI::Range(0.001, 1e9));
  app.add_option("--seed", f.seed, "of the random times")->capture_default_str();
  app.add_flag("--no-stream", f.whole, "ask for whole replies");
  app.add_flag("--json", f.json, "print one JSON object");
  if (const auto code = parse_options(app, argc, argv)) return *code;
  if (!f.requests) f.requests = f.seconds > 0 ? INT64_MAX : 10 * int64_t{f.concurrency};
  ::signal(SIGPIPE, SIG_IGN);

  const Address to = resolve(f.url);
  const int epoll = ::epoll_create1(0);
  if (epoll < 0) throw Error(std::string("epoll: ") + std::strerror(errno));
  std::mt19937_64 random(f.seed);
  std::exponential_distribution<double> wait(f.rate > 0 ? f.rate : 1);

  std::vector<std::unique_ptr<BenchRequest>> open;
  std::vector<double> first, gaps, total;
  int64_t started = 0, ok = 0, failed = 0, tokens = 0;
  std::string last_error;
  const auto begun = Clock::now();
  double next = 0;
  const auto may_start = [&] {
    return started < f.requests && (f.seconds == 0 || since(begun) < f.seconds) &&
           static_cast<int>(open.size()) < f.concurrency;
  };
  std::vector<epoll_event> events(1024);
  while (true) {
    while (may_start() && (f.rate == 0 || since(begun) >= next)) {
      Json message, body, options;
      message.set("role", "user");
      message.set("content", f.prompt + " " + std::to_string(started));
      body.set("model", f.model);
      body.set("messages", Json(Json::Array{message}));
      body.set("max_tokens", f.max_tokens);
      if (!f.whole) {
        options.set("include_usage", true);
        body.set("stream", true);
        body.set("stream_options", options);
      }
      const std::string text = write_json(body);
      open.push_back(std::make_unique<BenchRequest>(
          to,
          fmt::format(
              "POST /v1/chat/completions HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n{}"
              "Content-Length: {}\r\n\r\n{}",
              to.host, to.port, f.key.empty() ? "" : "Authorization: Bearer " + f.key + "\r\n", text.size(),
              text),
          epoll));
      ++started;
      if (f.rate > 0) next += wait(random);
    }
    if (open.empty() && (started >= f.requests || (f.seconds > 0 && since(begun) >= f.seconds))) break;
    const int timeout =
        f.rate > 0 && may_start() ? std::clamp(static_cast<int>(1e3 * (next - since(begun))), 0, 100) : 100;
    const int n = ::epoll_wait(epoll, events.data(), static_cast<int>(events.size()), timeout);
    for (int i = 0; i < n; ++i)
      static_cast<BenchRequest*>(events[static_cast<size_t>(i)].data.ptr)
          ->on_ready(events[static_cast<size_t>(i)].events);
    std::erase_if(open, [&](const std::unique_ptr<BenchRequest>& r) {
      if (!r->done()) return false;
      if (!r->error().empty()) {
        ++failed;
        last_error = r->error();
        return true;
      }
      ++ok;
      tokens += r->tokens;
      total.push_back(r->total);
      if (r->first >= 0) first.push_back(r->first);
      gaps.insert(gaps.end(), r->gaps.begin(), r->gaps.end());
      return true;
    });
  }
  ::close(epoll);

  const double seconds = since(begun);
  Json out;
  out.set("requests", ok);
  out.set("failed", failed);
  out.set("seconds", seconds);
  out.set("requests_per_second", static_cast<double>(ok) / seconds);
  out.set("tokens", tokens);
  out.set("tokens_per_second", static_cast<double>(tokens) / seconds);
  out.set("time_to_first_token", summary(first));
  out.set("inter_token", summary(gaps));
  out.set("end_to_end", summary(total));
  if (f.json) {
    fmt::print("{}\n", write_json(out));
  } else {
    fmt::print("{} requests in {:.1f} s, {} failed: {:.1f} requests/s, {:.0f} tokens/s\n", ok, seconds,
               failed, static_cast<double>(ok) / seconds, static_cast<double>(tokens) / seconds);
    for (const char* name : {"time_to_first_token", "inter_token", "end_to_end"}) {
      const Json& s = *out.find(name);
      fmt::print("{:20} mean {:9.2f}  p50 {:9.2f}  p90 {:9.2f}  p99 {:9.2f}  max {:9.2f} ms\n", name,
                 s.find("mean_ms")->as_double(), s.find("p50_ms")->as_double(), s.find("p90_ms")->as_double(),
                 s.find("p99_ms")->as_double(), s.find("max_ms")->as_double());
    }
  }
  if (failed) fmt::print(stderr, "quern bench: {} requests failed; the last one: {}\n", failed, last_error);
  return failed ? 1 : 0;
}

}  // namespace quern
