// Requests, and the meeting of a request with what answers it.
#include "server/http.h"

namespace quern {

std::string_view http_reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Overloaded";
    default:
      return "Unknown";
  }
}

std::string_view HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

namespace {

class WholeResponder : public Responder {
 public:
  explicit WholeResponder(HttpResponse response) : response_(std::move(response)) {}
  void pull(HttpOutput& out) override {
    out.begin(std::move(response_));
    out.finish();
  }

 private:
  HttpResponse response_;
};

}  // namespace

void Exchange::respond(HttpResponse response) {
  start(std::make_shared<WholeResponder>(std::move(response)));
}

void Exchange::start(std::shared_ptr<Responder> responder) {
  bool gone;
  {
    std::lock_guard lock(mutex_);
    QUERN_CHECK(!responder_, "an exchange is answered once");
    responder_ = responder;
    gone = gone_;
  }
  if (gone)
    responder->gone();
  else
    wake();
}

void Exchange::wake() {
  if (!woken_.exchange(true)) wake_connection();
}

std::shared_ptr<Responder> Exchange::responder() {
  std::lock_guard lock(mutex_);
  return responder_;
}

void Exchange::leave() {
  std::shared_ptr<Responder> responder;
  {
    std::lock_guard lock(mutex_);
    if (gone_.exchange(true)) return;
    responder = responder_;
  }
  if (responder) responder->gone();
}

}  // namespace quern
