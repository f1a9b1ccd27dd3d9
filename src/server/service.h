// The server: routes, access, the request log, the watchdog, and draining; over the transport (http.h) and the
// protocols (openai.h, anthropic.h, responses.h).
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/access.h"
#include "server/chat.h"
#include "server/http.h"
#include "server/metrics.h"
#include "server/response_store.h"
#include "server/work_pool.h"

namespace quern {

struct ServiceOptions {
  HttpOptions http;
  AccessOptions access;
  std::vector<std::string> model_names;  // the first is the model's own; others are aliases
  bool any_model = true;                 // a request may name a model that is none of these
  int worker_threads = 2;
  double request_seconds = 0;        // a reply that takes longer is ended with an error; 0: no limit
  double watchdog_seconds = 60;      // an engine step that takes longer counts as stuck; 0: never
  bool strip_billing_header = true;  // of coding clients, which would change the prompt with every request
  bool log_requests = false;         // one line an answer, without contents
  std::string store_path;            // of stored responses; empty: kept in memory
};

enum class Health : uint8_t { Loading, Ready, Stuck, Draining };

class Service {
 public:
  // The references must outlive this. Binds the port; throws Error.
  Service(ServiceOptions options, Engine& engine, const Tokenizer& tokenizer,
          const ChatTemplate& chat_template, ChatDefaults defaults);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  uint16_t port() const { return http_->port(); }
  void start();
  // Stops taking requests, lets those under way end for up to `seconds`, then ends them. Returns whether all ended
  // by themselves.
  bool drain(double seconds);
  void stop();

  Health health(std::string& why) const;
  Health told_health(std::string& why) const;

 private:
  bool gate(const HttpRequest& head, HttpResponse& response);
  void handle(std::shared_ptr<Exchange> exchange);
  void handle_json(const std::shared_ptr<Exchange>& exchange);
  void get(const std::shared_ptr<Exchange>& exchange);
  void dispatch(const std::shared_ptr<Exchange>& exchange, const Json& body);
  void generate(const std::shared_ptr<Exchange>& exchange, ChatRequest request,
                std::unique_ptr<ReplyWriter> writer);
  HttpResponse error_response(const HttpRequest& request, const ApiError& error) const;
  void respond(const std::shared_ptr<Exchange>& exchange, HttpResponse response) const;
  void check_model(ChatRequest& request) const;
  void watch();

  const ServiceOptions options_;
  Engine& engine_;
  Metrics metrics_;
  Chat chat_;
  Access access_;
  ResponseStore store_;
  const int64_t created_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> stuck_{false}, loading_{false};
  std::atomic<double> stuck_ended_{-1e9};  // seconds of the steady clock

  std::mutex mutex_;
  std::condition_variable wake_watch_;
  bool stopping_ = false;
  std::list<std::weak_ptr<Generation>> generations_;
  std::thread watch_;

  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<WorkPool> pool_;
};

}  // namespace quern
