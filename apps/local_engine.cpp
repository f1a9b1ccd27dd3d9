#include "local_engine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <random>

#include "base/check.h"

namespace quern {
namespace {

constexpr int64_t kDefaultContext = 32768;
constexpr std::string_view kThinkBegin = "<think>\n", kThinkEnd = "</think>";

ModelOptions model_options(const ReplyFlags& flags, const ModelFlags& model) {
  const auto checkpoint = Checkpoint::open(model.model);
  const Config config = read_config(*checkpoint);
  ModelOptions options;
  options.drafts = flags.max_drafts != 0;
  options.n_slots = 1;
  options.batch.context =
      flags.context > 0 ? flags.context : std::min<int64_t>(config.max_positions, kDefaultContext);
  options.batch.rows = 512 + kMaxDrafts + 1;
  options.batch.segments = 1;
  options.batch.logits = kMaxDrafts + 1;
  return options;
}

}  // namespace

void ReplyFlags::add_to(CLI::App& app) {
  app.add_option("-n,--max-tokens", max_tokens, "longest reply")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--ctx", context, "tokens of prompt and reply together; 0: the model's limit, at most 32768")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--greedy", greedy, "always the most likely token");
  app.add_option("--temperature", temperature, "0: greedy")
      ->check(CLI::Range(0.0, 100.0))
      ->excludes("--greedy");
  app.add_option("--top-k", top_k, "only the k most likely tokens; 0: all")->check(CLI::NonNegativeNumber);
  app.add_option("--top-p", top_p, "only the most likely tokens that together reach p")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--min-p", min_p, "only tokens at least this times as likely as the most likely")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--repetition-penalty", repetition_penalty, "1: none")->check(CLI::Range(0.01, 100.0));
  app.add_option("--presence-penalty", presence_penalty)->check(CLI::Range(-100.0, 100.0));
  app.add_option("--frequency-penalty", frequency_penalty)->check(CLI::Range(-100.0, 100.0));
  app.add_option("--seed", seed, "the same seed gives the same reply; a random one where absent");
  app.add_option("--system", system, "the system message");
  app.add_flag("--no-think", no_thinking, "answer without reasoning first");
  // As the server takes it: clients' names become the template's (high → xhigh).
  const auto read_effort = [this](std::string& name) -> std::string {
    try {
      name = canonical_effort(name);
    } catch (const Error&) {
      return "expected none, minimal, low, medium, high, xhigh or max, found " + name;
    }
    if (name == "none") {
      no_thinking = true;
      name = "";
    }
    return "";
  };
  app.add_option("--effort", effort,
                 "how much to reason, as the model's template names it: low, medium, xhigh")
      ->transform(CLI::Validator(read_effort, ""));
  app.add_option("--drafts", max_drafts, "draft depth; 0: none; -1: the engine's choice")
      ->capture_default_str()
      ->check(CLI::Range(-1, kMaxDrafts));
}

LocalEngine::LocalEngine(const ModelFlags& model, const ReplyFlags& flags)
    : flags_(flags),
      open_(open_model(model, model_options(flags, model))),
      tokenizer_(Tokenizer::from_model(model.model)),
      defaults_(read_generation_config(*open_.checkpoint)) {
  try {
    template_ = ChatTemplate::from_model(model.model);
  } catch (const Error& e) {
    template_error_ = e.what();
  }
  const Config& config = open_.model->config();
  if (defaults_.eos_ids.empty()) defaults_.eos_ids = config.eos_ids;
  end_ids_ = reply_ends(defaults_, tokenizer_);
  context_ = open_.model->options().batch.context;
  seed_ = flags.seed ? *flags.seed : (uint64_t{std::random_device{}()} << 32 | std::random_device{}());
  EngineOptions options;
  options.max_drafts = flags.max_drafts < 0 ? options.max_drafts : flags.max_drafts;
  engine_.emplace(*open_.model, options);
}

bool LocalEngine::is_end(int32_t id) const {
  return std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end();
}

ChatPrompt LocalEngine::render(const Json& messages) const {
  if (!template_) throw Error(template_error_);
  Json all = Json(Json::Array());
  if (!flags_.system.empty()) {
    Json system;
    system.set("role", "system");
    system.set("content", flags_.system);
    all.push_back(system);
  }
  for (const Json& m : messages.as_array()) all.push_back(m);
  Json variables = Json(Json::Object());
  variables.set("add_generation_prompt", true);
  if (flags_.no_thinking) variables.set("enable_thinking", false);
  if (!flags_.effort.empty()) variables.set("reasoning_effort", flags_.effort);
  return render_chat(*template_, all, {}, variables);
}

LocalReply LocalEngine::reply(std::vector<int32_t> prompt, const std::atomic<bool>& stop,
                              const std::function<void(std::span<const int32_t>)>& on_ids) {
  const auto room = context_ - static_cast<int64_t>(prompt.size());
  if (room < 1)
    throw Error(fmt::format("the prompt has {} tokens, and --ctx is {}", prompt.size(), context_));
  Request request;
  request.prompt = std::move(prompt);
  request.max_tokens = std::min(flags_.max_tokens, room);
  request.stop_ids = end_ids_;
  request.max_drafts = flags_.max_drafts;
  SamplingParams& p = request.sampling;
  p.temperature = flags_.greedy          ? 0.0F
                  : flags_.temperature   ? *flags_.temperature
                  : !defaults_.do_sample ? 0.0F
                                         : static_cast<float>(defaults_.temperature.value_or(1.0));
  p.top_p = flags_.top_p.value_or(static_cast<float>(defaults_.top_p.value_or(1.0)));
  p.min_p = flags_.min_p.value_or(static_cast<float>(defaults_.min_p.value_or(0.0)));
  p.top_k = flags_.top_k.value_or(static_cast<int32_t>(defaults_.top_k.value_or(0)));
  p.repetition_penalty =
      flags_.repetition_penalty.value_or(static_cast<float>(defaults_.repetition_penalty.value_or(1.0)));
  p.presence_penalty = flags_.presence_penalty;
  p.frequency_penalty = flags_.frequency_penalty;
  p.seed = seed_++;

  // Events arrive on the engine's thread and are worked off on this one.
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> events;
  const RequestId id = engine_->submit(std::move(request), [&](const Event& e) {
    const std::lock_guard lock(mutex);
    events.push_back(e);
    arrived.notify_one();
  });
  LocalReply reply;
  for (bool cancelled = false;;) {
    Event e;
    {
      std::unique_lock lock(mutex);
      // A signal handler can only set a flag, so look at it now and then.
      arrived.wait_for(lock, std::chrono::milliseconds(50), [&] { return !events.empty(); });
      if (events.empty()) {
        lock.unlock();
        if (stop && !cancelled) {
          engine_->cancel(id);
          cancelled = true;
        }
        continue;
      }
      e = std::move(events.front());
      events.pop_front();
    }
    if (!e.ids.empty()) {
      reply.ids.insert(reply.ids.end(), e.ids.begin(), e.ids.end());
      if (!stop) on_ids(e.ids);
    }
    if (stop && !cancelled && !e.finished) {
      engine_->cancel(id);
      cancelled = true;
    }
    if (!e.finished) continue;
    if (e.reason == FinishReason::Error) throw Error(e.error);
    reply.reason = e.reason;
    reply.usage = e.usage;
    return reply;
  }
}

ReplyPrinter::ReplyPrinter(const Tokenizer& tokenizer, bool starts_thinking)
    : detokenizer_(tokenizer, true), terminal_(::isatty(STDOUT_FILENO) == 1), thinking_(starts_thinking) {}

// With the first token: a request that is refused leaves the terminal as it was.
void ReplyPrinter::begin() {
  if (begun_) return;
  begun_ = true;
  if (!thinking_) return;
  // The prompt has opened the reasoning; a reader of a pipe is to find both marks.
  if (!terminal_) std::fwrite(kThinkBegin.data(), 1, kThinkBegin.size(), stdout);
  dim(true);
}

void ReplyPrinter::dim(bool on) {
  if (terminal_) std::fputs(on ? "\x1b[2m" : "\x1b[0m", stdout);
}

void ReplyPrinter::print(std::span<const int32_t> ids) {
  begin();
  for (const int32_t id : ids) print_text(detokenizer_.push(id));
  std::fflush(stdout);
}

void ReplyPrinter::print_text(std::string_view text) {
  if (!thinking_) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return;
  }
  held_ += text;
  const size_t end = held_.find(kThinkEnd);
  if (end != std::string::npos) {
    // On a terminal the change of brightness says what the mark says.
    std::fwrite(held_.data(), 1, terminal_ ? end : end + kThinkEnd.size(), stdout);
    dim(false);
    thinking_ = false;
    const std::string rest = held_.substr(end + kThinkEnd.size());
    held_.clear();
    print_text(rest);
    return;
  }
  // Keep back the longest end that may begin the mark.
  size_t keep = std::min(held_.size(), kThinkEnd.size() - 1);
  while (keep > 0 && !kThinkEnd.starts_with(std::string_view(held_).substr(held_.size() - keep))) --keep;
  std::fwrite(held_.data(), 1, held_.size() - keep, stdout);
  held_.erase(0, held_.size() - keep);
}

void ReplyPrinter::finish() {
  print_text(detokenizer_.finish());
  std::fwrite(held_.data(), 1, held_.size(), stdout);
  held_.clear();
  if (thinking_ && begun_) dim(false);
  thinking_ = false;
  std::fputc('\n', stdout);
  std::fflush(stdout);
}

}  // namespace quern
