#include "server/service.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/json_repair.h"
#include "base/log.h"
#include "base/utf8.h"
#include "server/anthropic.h"
#include "server/openai.h"
#include "server/responses.h"
#if __has_include("server/page.h")
#include "server/page.h"
#else
namespace quern {
std::string_view page_html() { return "The web page is not built into this program.\n"; }
}  // namespace quern
#endif

namespace quern {

using Clock = std::chrono::steady_clock;

namespace {

// Probes come every few seconds; /health says "stuck" at least this long, or as long as the watchdog waits.
constexpr double kStuckIsToldSeconds = 5;

double steady_seconds() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

bool is_anthropic(std::string_view path) {
  return path == "/v1/messages" || path.starts_with("/v1/messages/");
}

// The methods of a path; empty: there is no such path.
std::string_view methods_of(std::string_view path) {
  static constexpr std::pair<std::string_view, std::string_view> kRoutes[] = {
      {"/", "GET HEAD"},
      {"/health", "GET HEAD"},
      {"/metrics", "GET HEAD"},
      {"/v1/models", "GET HEAD"},
      {"/v1/chat/completions", "POST"},
      {"/v1/completions", "POST"},
      {"/v1/responses", "POST"},
      {"/v1/messages", "POST"},
      {"/v1/messages/count_tokens", "POST"},
      {"/v1/embeddings", "POST"},
      {"/tokenize", "POST"},
      {"/detokenize", "POST"},
      {"/apply-template", "POST"},
  };
  for (const auto& [route, methods] : kRoutes)
    if (path == route) return methods;
  if (path.starts_with("/v1/models/") && path.size() > 11) return "GET HEAD";
  if (path.starts_with("/v1/responses/") && path.size() > 14 && path.find('/', 14) == path.npos)
    return "GET HEAD DELETE";
  return {};
}

// What metrics call a path: a closed set, whatever clients ask for.
std::string_view route_name(std::string_view path) {
  if (path.starts_with("/v1/models/")) return "/v1/models/{id}";
  if (path.starts_with("/v1/responses/")) return "/v1/responses/{id}";
  return methods_of(path).empty() ? "other" : path;
}

// The last part of a path, %XX undone: clients encode the slash of a model's name. What is no escape stays.
std::string decode_segment(std::string_view text) {
  const auto digit = [](char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 && digit(text[i + 2]) >= 0;
    out += escape ? static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return out;
}

bool lists(std::string_view methods, std::string_view method) {
  for (size_t at = 0; at < methods.size();) {
    const size_t end = std::min(methods.find(' ', at), methods.size());
    if (methods.substr(at, end - at) == method) return true;
    at = end + 1;
  }
  return false;
}

// As the Allow header lists them.
std::string allow_of(std::string_view methods) {
  std::string allow(methods);
  for (size_t at = 0; (at = allow.find(' ', at)) != std::string::npos; at += 2) allow.replace(at, 1, ", ");
  return allow + ", OPTIONS";
}

// Polls a generation and lets a writer put it into words.
class ReplyResponder : public Responder {
 public:
  ReplyResponder(std::shared_ptr<Generation> generation, std::unique_ptr<ReplyWriter> writer,
                 HttpHeaders headers)
      : generation_(std::move(generation)), writer_(std::move(writer)), headers_(std::move(headers)) {}

  void pull(HttpOutput& out) override {
    if (writer_->is_stream() && !out.begun) {
      HttpResponse head;
      head.content_type = "text/event-stream; charset=utf-8";
      head.headers = headers_;
      head.headers.emplace_back("Cache-Control", "no-cache");
      head.headers.emplace_back("X-Accel-Buffering", "no");
      out.begin(std::move(head));
    }
    std::optional<ApiError> error;
    try {
      std::string& body = writer_->is_stream() ? out.body : whole_;
      generation_->poll(*writer_, body);
      error = generation_->error();
      if (!error && generation_->finished()) {
        writer_->end(generation_->usage(), body);
        if (!out.begun) answer(out, 200, std::move(whole_));
        out.finish();
      }
    } catch (const std::exception& fault) {
      log(LogLevel::Error, "a reply could not be written: {}", fault.what());
      generation_->cancel();
      error = ApiError(500, "the reply could not be written");
    }
    if (!error) return;
    if (out.begun)
      writer_->error(*error, out.body);
    else
      answer(out, error->status, writer_->error_body(*error));
    out.finish();
  }

  std::string ping() override { return writer_->ping(); }
  void gone() override { generation_->cancel(); }

 private:
  void answer(HttpOutput& out, int status, std::string body) {
    HttpResponse head;
    head.status = status;
    head.headers = headers_;
    head.body = std::move(body);
    out.begin(std::move(head));
  }

  std::shared_ptr<Generation> generation_;
  std::unique_ptr<ReplyWriter> writer_;
  HttpHeaders headers_;
  std::string whole_;
};

}  // namespace

Service::Service(ServiceOptions options, Engine& engine, const Tokenizer& tokenizer,
                 const ChatTemplate& chat_template, ChatDefaults defaults)
    : options_(std::move(options)),
      engine_(engine),
      chat_(engine, tokenizer, chat_template, std::move(defaults), metrics_),
      access_(options_.access),
      store_(options_.store_path),
      created_(unix_seconds()) {
  QUERN_CHECK(!options_.model_names.empty(), "a server serves a model with a name");
  HttpOptions http = options_.http;
  http.gate = [this](const HttpRequest& head, HttpResponse& response) { return gate(head, response); };
  http.handle = [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); };
  http.error = [this](const HttpRequest& request, int status, std::string_view reason) {
    ApiError error(status, std::string(reason));
    if (status == 503) error.retry_after = 1;
    return error_response(request, error);
  };
  http.done = [this](const HttpRequest& request, int status, size_t bytes, double seconds) {
    metrics_.count_answer(request.path.empty() ? "malformed" : route_name(request.path), status);
    if (options_.log_requests)
      log(LogLevel::Info, "{} {} {} {} {} bytes {:.3f} s", request.peer, request.method.substr(0, 16),
          route_name(request.path), status, bytes, seconds);
  };
  http_ = std::make_unique<HttpServer>(std::move(http));
  pool_ = std::make_unique<WorkPool>(std::max(1, options_.worker_threads),
                                     static_cast<size_t>(std::max(1, options_.http.limits.connections)));
}

Service::~Service() { stop(); }

void Service::start() {
  loading_ = engine_.stats().loading;
  watch_ = std::thread([this] { watch(); });
  http_->start();
}

bool Service::drain(double seconds) {
  draining_ = true;
  engine_.drain();
  return http_->drain(seconds);
}

void Service::stop() {
  draining_ = true;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_watch_.notify_all();
  if (watch_.joinable()) watch_.join();
  http_->stop();
  pool_->stop();
  // Sinks refer to this object's metrics: the engine's replies end before it goes.
  std::vector<std::shared_ptr<Generation>> open;
  {
    std::lock_guard lock(mutex_);
    for (const auto& weak : generations_)
      if (auto generation = weak.lock()) open.push_back(std::move(generation));
  }
  for (const auto& generation : open) generation->close();
}

Health Service::health(std::string& why) const {
  if (draining_) {
    why = "the server is shutting down";
    return Health::Draining;
  }
  if (stuck_) {
    why = fmt::format("the engine is stuck: a step has not ended for more than {} s",
                      options_.watchdog_seconds);
    return Health::Stuck;
  }
  if (loading_ && engine_.stats().loading) {  // watch() looks only now and then
    why = "the model is being loaded";
    return Health::Loading;
  }
  return Health::Ready;
}

// What /health says: a step that was stuck is told for a while after it has ended, though requests are taken again.
Health Service::told_health(std::string& why) const {
  const Health now = health(why);
  const double ago = steady_seconds() - stuck_ended_;
  if (now != Health::Ready || ago >= std::min(kStuckIsToldSeconds, options_.watchdog_seconds)) return now;
  why = fmt::format("the engine was stuck until {:.1f} s ago: a step took more than {} s", ago,
                    options_.watchdog_seconds);
  return Health::Stuck;
}

// Looks at the engine four times a second: is a step stuck, is a reply over its time?
void Service::watch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    const EngineStats stats = engine_.stats();
    loading_ = stats.loading;
    const bool stuck = options_.watchdog_seconds > 0 && stats.seconds_in_step > options_.watchdog_seconds;
    if (stuck && !stuck_) {
      ++metrics_.watchdog_fired;
      log(LogLevel::Error, "watchdog: a step of the engine has run for {:.1f} s; {} running, {} waiting",
          stats.seconds_in_step, stats.running, stats.waiting);
    } else if (!stuck && stuck_) {
      log(LogLevel::Warn, "watchdog: the engine goes on");
      stuck_ended_ = steady_seconds();
    }
    stuck_ = stuck;
    std::vector<std::shared_ptr<Generation>> open;
    lock.lock();
    for (auto it = generations_.begin(); it != generations_.end();) {
      if (auto generation = it->lock()) {
        open.push_back(std::move(generation));
        ++it;
      } else {
        it = generations_.erase(it);
      }
    }
    lock.unlock();
    for (const auto& generation : open) {
      if (stuck)
        generation->fail(ApiError(503, "the engine is stuck; the request was ended", {}, "engine_stuck"));
      else if (options_.request_seconds > 0 && seconds_since(generation->begun()) > options_.request_seconds)
        generation->fail(ApiError(504,
                                  fmt::format("the reply took longer than {} s", options_.request_seconds),
                                  {}, "request_timeout"));
    }
    open.clear();
    lock.lock();
    wake_watch_.wait_for(lock, std::chrono::milliseconds(250), [&] { return stopping_; });
  }
}

bool Service::gate(const HttpRequest& head, HttpResponse& response) {
  if (head.method == "OPTIONS") {
    HttpHeaders headers = access_.preflight(head);
    if (!headers.empty()) {
      response.status = 204;
      response.headers = std::move(headers);
      return true;
    }
  }
  if (const Access::Verdict verdict = access_.check(head); verdict.status != 200) {
    response = error_response(head, ApiError(verdict.status, verdict.reason, {},
                                             verdict.status == 401 ? "invalid_api_key" : "forbidden"));
    if (verdict.status == 401)
      response.headers.emplace_back(
          "WWW-Authenticate", verdict.ask_basic ? "Basic realm=\"quern\", charset=\"UTF-8\"" : "Bearer");
    return true;
  }
  const std::string_view methods = methods_of(head.path);
  if (head.method == "OPTIONS" && (!methods.empty() || head.path == "*")) {
    response.status = 204;
    response.headers.emplace_back("Allow",
                                  head.path == "*" ? "GET, HEAD, POST, DELETE, OPTIONS" : allow_of(methods));
    return true;
  }
  if (methods.empty()) {
    response = error_response(
        head,
        ApiError(404, "there is no route " + write_json(Json(head.path.substr(0, 200))), {}, "not_found"));
    return true;
  }
  if (!lists(methods, head.method)) {
    response =
        error_response(head, ApiError(405, fmt::format("expected {}, found {}", methods, head.method)));
    response.headers.emplace_back("Allow", allow_of(methods));
    return true;
  }
  // A model that is being loaded has no limits to tell yet.
  if (std::string why; head.method == "POST" || head.path.starts_with("/v1/models")) {
    const Health state = health(why);
    if (state != Health::Ready && (head.method == "POST" || state == Health::Loading)) {
      ApiError error(503, why, {}, "not_ready");
      error.retry_after = 5;
      response = error_response(head, error);
      return true;
    }
  }
  return false;
}

HttpResponse Service::error_response(const HttpRequest& request, const ApiError& error) const {
  HttpResponse response;
  response.status = error.status;
  response.body = is_anthropic(request.path) ? anthropic_error(error) : openai_error(error);
  if (error.retry_after) response.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  for (auto& header : access_.cors(request)) response.headers.push_back(std::move(header));
  return response;
}

void Service::respond(const std::shared_ptr<Exchange>& exchange, HttpResponse response) const {
  for (auto& header : access_.cors(exchange->request)) response.headers.push_back(std::move(header));
  exchange->respond(std::move(response));
}

void Service::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request;
  HttpResponse response;
  if (request.path == "/health") {
    std::string why;
    const Health state = told_health(why);
    static constexpr std::string_view kNames[] = {"loading", "ok", "stuck", "draining"};
    response.status = state == Health::Ready ? 200 : 503;
    response.body = fmt::format(R"({{"status":"{}")", kNames[static_cast<int>(state)]);
    if (!why.empty()) response.body += ",\"reason\":" + write_json(Json(why));
    response.body += '}';
    if (state != Health::Ready) response.headers.emplace_back("Retry-After", "5");
    return respond(exchange, std::move(response));
  }
  if (request.path == "/") {
    response.body = page_html();
    response.content_type =
        response.body.starts_with("<") ? "text/html; charset=utf-8" : "text/plain; charset=utf-8";
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    response.headers.emplace_back("X-Frame-Options", "DENY");
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
    return respond(exchange, std::move(response));
  }
  if (!pool_->post([this, exchange] { handle_json(exchange); })) {
    ApiError error(503, "too many requests wait to be read", {}, "overloaded");
    error.retry_after = 1;
    exchange->respond(error_response(request, error));
  }
}

// On a worker: everything that reads a body or asks the engine.
void Service::handle_json(const std::shared_ptr<Exchange>& exchange) {
  if (exchange->gone()) return;
  HttpRequest& request = exchange->request;
  try {
    if (request.method != "POST") return get(exchange);
    if (const size_t n = repair_surrogates(request.body)) {
      metrics_.surrogates_repaired += static_cast<int64_t>(n);
      log(LogLevel::Warn, "{}: replaced {} lone surrogates", route_name(request.path), n);
    }
    Json body;
    try {
      body = parse_json(request.body, {.max_depth = 256, .unique_keys = true});
    } catch (const Error& error) {
      throw ApiError(400, std::string("body: ") + error.what(), {}, "invalid_json");
    }
    std::string().swap(request.body);
    if (!body.is_object()) bad_field("body", "a JSON object", body);
    dispatch(exchange, body);
  } catch (const ApiError& error) {
    exchange->respond(error_response(request, error));
  } catch (const Error& error) {
    exchange->respond(error_response(request, ApiError(400, error.what())));
  } catch (const std::exception& error) {
    log(LogLevel::Error, "{}: {}", route_name(request.path), error.what());
    exchange->respond(error_response(request, ApiError(500, "internal error")));
  }
}

void Service::get(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request;
  const std::string& path = request.path;
  HttpResponse response;
  if (path == "/metrics") {
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = metrics_.text(engine_.stats(), http_->stats(), options_.model_names[0]);
  } else if (path == "/v1/models") {
    response.body = openai_models(options_.model_names, engine_.limits().context, created_);
  } else if (path.starts_with("/v1/models/")) {
    const std::string name = decode_segment(path.substr(11));
    if (std::find(options_.model_names.begin(), options_.model_names.end(), name) ==
        options_.model_names.end())
      throw ApiError(404, "the model " + write_json(Json(name.substr(0, 100))) + " does not exist", "model",
                     "model_not_found");
    response.body = openai_model(name, options_.model_names[0], engine_.limits().context, created_);
  } else {
    const std::string id = decode_segment(path.substr(14));
    if (request.method == "GET" && ("&" + request.query).find("&stream=true") != std::string::npos)
      throw ApiError(400, "stream: a stored response is not streamed again", "stream");
    const auto stored = store_.get(id);
    if (!stored)
      throw ApiError(404, "the response " + write_json(Json(id.substr(0, 100))) + " is not stored here", {},
                     "response_not_found");
    if (request.method == "DELETE") {
      store_.remove(id);
      response.body = R"({"id":)" + write_json(Json(id)) + R"(,"object":"response","deleted":true})";
    } else {
      response.body = stored->response;
    }
  }
  respond(exchange, std::move(response));
}

void Service::check_model(ChatRequest& request) const {
  // Every chunk of a stream repeats it.
  if (request.model.size() > 1024) bad_field("model", "at most 1024 bytes", Json(request.model));
  if (request.model.empty()) {
    request.model = options_.model_names[0];
    return;
  }
  if (options_.any_model) return;
  if (std::find(options_.model_names.begin(), options_.model_names.end(), request.model) ==
      options_.model_names.end())
    throw ApiError(404, "the model " + write_json(Json(request.model.substr(0, 100))) + " does not exist",
                   "model", "model_not_found");
}

void Service::dispatch(const std::shared_ptr<Exchange>& exchange, const Json& body) {
  const std::string& path = exchange->request.path;
  const RequestLimits limits = chat_.limits();
  HttpResponse response;
  if (path == "/v1/chat/completions") {
    ChatRequest request = parse_chat_completion(body, limits);
    check_model(request);
    auto writer = make_chat_completion_writer(request);
    return generate(exchange, std::move(request), std::move(writer));
  }
  if (path == "/v1/completions") {
    ChatRequest request = parse_completion(body, limits);
    check_model(request);
    auto writer = make_completion_writer(request);
    return generate(exchange, std::move(request), std::move(writer));
  }
  if (path == "/v1/messages") {
    ChatRequest request = parse_anthropic_messages(body, limits, {options_.strip_billing_header, false});
    check_model(request);
    auto writer = make_anthropic_writer(request);
    return generate(exchange, std::move(request), std::move(writer));
  }
  if (path == "/v1/responses") {
    ResponsesRequest request = parse_responses(body, limits, store_);
    check_model(request.chat);
    request.echo.set("model", request.chat.model);
    ChatRequest chat = request.chat;
    request.chat.messages = Json();
    return generate(exchange, std::move(chat), make_responses_writer(std::move(request), store_));
  }
  if (path == "/v1/messages/count_tokens") {
    ChatRequest request = parse_anthropic_messages(body, limits, {options_.strip_billing_header, true});
    check_model(request);
    response.body = fmt::format(R"({{"input_tokens":{}}})", chat_.prepare(request).ids.size());
    return respond(exchange, std::move(response));
  }
  if (path == "/v1/embeddings")
    throw ApiError(400, "embeddings are not supported: this model generates text");
  if (path == "/apply-template") {
    ChatRequest request = parse_chat_completion(body, limits);
    check_model(request);
    response.body = R"({"prompt":)" + write_json(Json(chat_.apply_template(request))) + "}";
    return respond(exchange, std::move(response));
  }
  Fields fields(body, "");
  if (path == "/tokenize") {
    std::vector<int32_t> ids;
    if (fields.get("messages")) {
      ChatRequest request = parse_chat_completion(body, limits);
      check_model(request);
      ids = chat_.prepare(request).ids;
    } else {
      const std::string* text = fields.text("content");
      if (!text) text = fields.text("prompt");
      if (!text) bad_request("content", "is missing");
      const bool control = fields.boolean("parse_special").value_or(true);
      ids = chat_.tokenizer().encode(*text, control ? ControlTokens::Recognise : ControlTokens::AsText);
    }
    response.body = fmt::format(R"({{"tokens":[{}],"count":{},"max_model_len":{}}})", fmt::join(ids, ","),
                                ids.size(), limits.context);
    return respond(exchange, std::move(response));
  }
  // /detokenize
  const Json* tokens = fields.array("tokens");
  if (!tokens) bad_request("tokens", "is missing");
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    const Json& id = tokens->as_array()[i];
    if (!id.is_int() || id.as_int() < 0 || id.as_int() >= limits.vocab)
      bad_field(fmt::format("tokens[{}]", i), fmt::format("a token id from 0 to {}", limits.vocab - 1), id);
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  const std::string text = write_json(Json(chat_.tokenizer().decode(ids)));
  response.body = fmt::format(R"({{"content":{0},"prompt":{0}}})", text);
  respond(exchange, std::move(response));
}

void Service::generate(const std::shared_ptr<Exchange>& exchange, ChatRequest request,
                       std::unique_ptr<ReplyWriter> writer) {
  auto generation = chat_.start(request, [weak = std::weak_ptr<Exchange>(exchange)] {
    if (auto strong = weak.lock()) strong->wake();
  });
  {
    std::lock_guard lock(mutex_);
    generations_.push_back(generation);
  }
  exchange->start(std::make_shared<ReplyResponder>(std::move(generation), std::move(writer),
                                                   access_.cors(exchange->request)));
}

}  // namespace quern
