// quern serve: the server. Options are flags, or the same names in a TOML file given with --config (option_file.h).
#include <fmt/core.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "commands.h"
#include "engine/late_engine.h"
#include "engine/scripted_engine.h"
#include "engine_flags.h"
#include "model_flags.h"
#include "option_file.h"
#include "server/service.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace quern {
namespace {

namespace fs = std::filesystem;

struct ServeFlags {
  ModelFlags model;
  EngineFlags engine;
  std::string script;
  ServiceOptions service;
  ChatDefaults defaults;
  std::vector<std::string> aliases, keys;
  std::string key_file, log_level = "info";
  int port = 8080;
  int max_running = 256, max_queue = 1024;
  double body_mib = 64, header_kib = 64, drain_seconds = 30;
  double temperature = -1, top_p = -1, min_p = -1;
  int top_k = -1;
};

void add_flags(CLI::App& app, ServeFlags& f) {
  HttpOptions& http = f.service.http;
  HttpLimits& limits = http.limits;
  f.model.add_to(app);
  app.add_option("--script", f.script, "answer from this script instead of the model: no weights are loaded");
  app.set_config("--config", "", "read options from this TOML file: the flags' long names as keys, and model");
  app.config_formatter(std::make_shared<OptionFile>(app));

  app.add_option("--host", http.host, "address to listen on")->capture_default_str();
  app.add_option("--port", f.port, "port to listen on; 0: any free one")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  app.add_option("--alias", f.aliases, "another name of the model; may be repeated");
  app.add_flag_callback(
      "--only-named-models", [&f] { f.service.any_model = false; },
      "refuse requests for a model of another name");
  app.add_option("--api-key", f.keys, "a key that requests must carry; may be repeated");
  app.add_option("--api-key-file", f.key_file, "a file of such keys, one a line");
  app.add_option("--cors-origin", f.service.access.cors_origins,
                 "an origin whose pages may use the server, or *");
  app.add_option("--tls-cert", http.tls_certificate, "PEM file with the certificate chain");
  app.add_option("--tls-key", http.tls_key, "PEM file with its key");

  const auto positive = CLI::Range(0.001, 1e9);
  f.engine.add_to(app);
  app.add_option("--max-running", f.max_running, "with --script: replies written at a time")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app.add_option("--max-queue", f.max_queue, "replies that wait; more get 429")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-connections", limits.connections, "open connections; more get 503")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_option("--max-body-mib", f.body_mib, "largest request body")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--max-header-kib", f.header_kib, "largest request header")
      ->check(CLI::Range(1.0, 1024.0))
      ->capture_default_str();
  app.add_option("--header-timeout", limits.header_seconds, "seconds for a request's header")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--body-timeout", limits.body_seconds, "seconds for a request's body")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--idle-timeout", limits.idle_seconds, "seconds a connection may be idle between requests")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--write-timeout", limits.write_stall_seconds,
                 "seconds a client may take no byte of its answer")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--request-timeout", f.service.request_seconds, "seconds a reply may take; 0: no limit")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--ping-interval", limits.ping_seconds,
                 "seconds of silence in a stream before a comment is sent")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--watchdog", f.service.watchdog_seconds,
                 "seconds an engine step may take before /health is red; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  app.add_option("--drain-timeout", f.drain_seconds, "seconds replies may take to end after SIGTERM")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();

  app.add_option("--temp", f.temperature, "temperature where a request has none (default: the model's)")
      ->check(CLI::Range(0.0, 2.0));
  app.add_option("--top-p", f.top_p, "top-p where a request has none (default: the model's)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--top-k", f.top_k, "top-k where a request has none; 0: off (default: the model's)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--min-p", f.min_p, "min-p where a request has none")->check(CLI::Range(0.0, 1.0));
  app.add_option("--max-tokens", f.defaults.max_tokens, "tokens of a reply where a request has no limit")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));

  app.add_option("--response-store", f.service.store_path,
                 "SQLite file for the responses of /v1/responses (default: in memory)");
  app.add_flag_callback(
      "--keep-billing-header", [&f] { f.service.strip_billing_header = false; },
      "keep the x-anthropic-billing-header block of coding clients in the prompt");
  app.add_option("--io-threads", http.io_threads, "threads for connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--worker-threads", f.service.worker_threads, "threads for parsing and tokenising")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_option("--log-level", f.log_level, "debug, info, warn, error or off")
      ->check(CLI::IsMember({"debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  app.add_flag("--log-requests", f.service.log_requests, "log a line for each answer, without contents");
}

// The ids that end a turn, and the sampling the model's makers advise.
void set_defaults(const GenerationConfig& config, const Tokenizer& tokenizer, ChatDefaults& defaults) {
  defaults.end_ids = reply_ends(config, tokenizer);
  SamplingParams& s = defaults.sampling;
  s.temperature = config.do_sample ? static_cast<float>(config.temperature.value_or(1)) : 0;
  s.top_p = static_cast<float>(config.top_p.value_or(1));
  s.top_k = static_cast<int32_t>(config.top_k.value_or(0));
  s.min_p = static_cast<float>(config.min_p.value_or(0));
}

// Blocks until SIGTERM or SIGINT.
int wait_for_signal(const sigset_t& set) {
  int signal = 0;
  while (sigwait(&set, &signal) != 0) {
  }
  return signal;
}

}  // namespace

int serve_main(int argc, char** argv) {
  CLI::App app("Serves a model over HTTP: OpenAI's and Anthropic's APIs, and a web page.");
  ServeFlags f;
  add_flags(app, f);
  if (const auto code = parse_options(app, argc, argv)) return *code;

  set_log_level(parse_log_level(f.log_level));
  ServiceOptions& service = f.service;
  service.http.port = static_cast<uint16_t>(f.port);
  service.http.limits.body_bytes = static_cast<size_t>(f.body_mib * (1 << 20));
  service.http.limits.header_bytes = static_cast<size_t>(f.header_kib * 1024);
  service.access.keys = f.keys;
  if (!f.key_file.empty())
    for (std::string& key : read_keys(f.key_file)) service.access.keys.push_back(std::move(key));
  service.access.loopback = is_loopback_name(
      service.http.host.find(':') == std::string::npos ? service.http.host : "[" + service.http.host + "]");

  const fs::path path = f.model.model;
  const fs::path whole = fs::weakly_canonical(path);
  const fs::path name = fs::is_directory(whole) ? whole.filename() : whole.stem();
  service.model_names.push_back(name.string());
  for (std::string& alias : f.aliases) {
    if (alias.empty()) throw Error("--alias: expected a name, found an empty one");
    service.model_names.push_back(std::move(alias));
  }

  // Signals are for this thread alone; the others inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  // With a script nothing but the tokenizer, the template and the defaults is needed of a folder.
  const Tokenizer tokenizer = Tokenizer::from_model(path);
  const ChatTemplate chat_template = ChatTemplate::from_model(path);
  set_defaults(read_generation_config(path), tokenizer, f.defaults);
  if (f.defaults.end_ids.empty())
    throw Error(
        fmt::format("{}: no end-of-turn token: expected <|im_end|> in the tokenizer, or eos_token_id in "
                    "generation_config.json",
                    f.model.model));
  if (f.temperature >= 0) f.defaults.sampling.temperature = static_cast<float>(f.temperature);
  if (f.top_p >= 0) f.defaults.sampling.top_p = static_cast<float>(f.top_p);
  if (f.top_k >= 0) f.defaults.sampling.top_k = f.top_k;
  if (f.min_p >= 0) f.defaults.sampling.min_p = static_cast<float>(f.min_p);

  std::unique_ptr<Engine> scripted;
  if (!f.script.empty()) {
    ScriptedEngineOptions options;
    options.vocab = tokenizer.size();
    options.end_id = f.defaults.end_ids[0];
    options.max_running = f.max_running;
    options.max_queue = f.max_queue;
    options.decode = [&](std::span<const int32_t> ids) { return tokenizer.decode(ids); };
    Script script;
    try {
      script = parse_script(read_file(f.script, 256 << 20), [&](std::string_view text) {
        return tokenizer.encode(text, ControlTokens::Recognise);
      });
      scripted = make_scripted_engine(std::move(script), std::move(options));
    } catch (const Error& error) {
      throw Error(std::string("--script ") + f.script + ": " + error.what());
    }
  }

  OpenEngine open;
  LateEngine engine;
  if (scripted) engine.set(*scripted);
  const std::string scheme = service.http.tls_certificate.empty() ? "http" : "https";
  const std::string host = service.http.host;
  const bool open_to_all = !service.access.loopback && service.access.keys.empty();
  Service server(std::move(service), engine, tokenizer, chat_template, f.defaults);
  server.start();
  const bool is_v6 = host.find(':') != std::string::npos;
  const std::string where =
      fmt::format("{}://{}{}{}:{}", scheme, is_v6 ? "[" : "", host, is_v6 ? "]" : "", server.port());
  if (open_to_all)
    log(LogLevel::Warn, "no API key is set: everybody who reaches {} can use this server", host);

  // Health and metrics answer while the model is loaded. A fault of it ends the program like a signal would.
  std::atomic<bool> loading{!scripted}, failed{false};
  std::exception_ptr fault;
  std::thread load([&] {
    if (!scripted) {
      log(LogLevel::Info, "loading {}; {}/health says when it is ready", name.string(), where);
      try {
        f.engine.options.max_queue = f.max_queue;
        open = open_engine(f.model, f.engine);
        engine.set(*open.engine);
      } catch (...) {
        fault = std::current_exception();
        failed = true;
        ::kill(::getpid(), SIGTERM);
      }
    }
    if (!fault) log(LogLevel::Info, "serving {} on {}", name.string(), where);
    loading = false;
  });

  const int first = wait_for_signal(signals);
  if (loading && !failed) {  // files are only read: nothing waits to be finished
    log(LogLevel::Info, "signal {}: ending while the model is loaded", first);
    server.stop();
    std::_Exit(0);
  }
  load.join();
  if (fault) {
    server.stop();
    std::rethrow_exception(fault);
  }
  log(LogLevel::Info, "signal {}: finishing the replies under way, for up to {} s; a second signal ends them",
      first, f.drain_seconds);
  std::atomic<bool> drained{false};
  std::thread drain([&] {
    server.drain(f.drain_seconds);
    drained = true;
  });
  const timespec tick{0, 50'000'000};
  while (!drained && sigtimedwait(&signals, nullptr, &tick) < 0) {
  }
  engine.stop();
  server.stop();
  drain.join();
  return 0;
}

}  // namespace quern
