#include "server/generation.h"

#include <algorithm>
#include <utility>

namespace quern {

using Clock = std::chrono::steady_clock;

namespace {

// A stream is handed about this much at a time: tokens that queued for a client that does not read stay four bytes each.
constexpr size_t kStreamBytes = 64 << 10;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

bool tags_are_tokens(const Tokenizer& tokenizer) {
  for (const char* tag : {"<think>", "</think>", "<tool_call>", "</tool_call>"})
    if (!tokenizer.find_special(tag)) return false;
  return true;
}

}  // namespace

Generation::Generation(GenerationSetup setup) : setup_(std::move(setup)), open_(setup_.replies) {
  for (int32_t i = 0; i < setup_.replies; ++i) {
    OutputParserOptions options;
    options.thinking = setup_.thinking;
    options.split_reasoning = !setup_.raw;
    options.tags_are_tokens = tags_are_tokens(*setup_.tokenizer);
    options.tools = setup_.tools;
    options.stop = setup_.stop;
    options.max_calls = setup_.one_call ? 1 : 0;
    replies_.push_back(ReplyState{OutputParser(std::move(options)), 0, 0, 0, false, false, {}, {}, {}});
  }
}

void Generation::accept(const Event& event) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    const auto now = Clock::now();
    if (!event.ids.empty()) {
      // A step of several tokens counts as that many waits, each its share.
      const auto n = static_cast<int64_t>(event.ids.size());
      if (!any_token_)
        setup_.metrics->time_to_first_token.observe(seconds_between(begun_, now));
      else
        setup_.metrics->inter_token.observe(seconds_between(last_token_, now) / static_cast<double>(n), n);
      any_token_ = true;
      last_token_ = now;
    }
    if (event.finished) {
      setup_.metrics->end_to_end.observe(seconds_between(begun_, now));
      setup_.metrics->queue_time.observe(event.usage.queue_seconds);
      setup_.metrics->prefill_time.observe(event.usage.prefill_seconds);
      setup_.metrics->decode_time.observe(event.usage.decode_seconds);
    }
    Item* last = queue_.empty() ? nullptr : &queue_.back();
    if (!last || last->reply != event.index || last->finished) {
      queue_.emplace_back();
      last = &queue_.back();
      last->reply = event.index;
    }
    last->ids.insert(last->ids.end(), event.ids.begin(), event.ids.end());
    last->logprobs.insert(last->logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    last->usage = event.usage;
    if (event.finished) {
      last->finished = true;
      last->reason = event.reason;
      last->error = event.error;
    }
  }
  setup_.wake();
}

void Generation::submitted(RequestId id) {
  bool cancel;
  {
    std::lock_guard lock(mutex_);
    id_ = id;
    cancel = cancelled_;
  }
  if (cancel) setup_.engine->cancel(id);
}

void Generation::cancel() {
  RequestId id;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(cancelled_, true)) return;
    id = id_;
  }
  if (id) setup_.engine->cancel(id);
}

void Generation::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
}

void Generation::fail(const ApiError& error) {
  {
    std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = error;
  }
  cancel();
  setup_.wake();
}

void Generation::poll(ReplyWriter& writer, std::string& out) {
  if (finished()) return;
  std::vector<Item> items;
  {
    std::lock_guard lock(mutex_);
    items.swap(queue_);
    error_ = failure_;
  }
  if (error_) return;
  if (!writer_begun_ && (!items.empty() || !writer.begins_with_first_event())) {
    writer_begun_ = true;
    if (!items.empty()) replies_[static_cast<size_t>(items[0].reply)].usage = items[0].usage;
    writer.begin(usage(), out);
  }
  for (auto item = items.begin(); item != items.end(); ++item) {
    const bool whole = take(*item, writer, out);
    if (error_) return;
    if (whole) continue;
    put_back(item, items);
    return setup_.wake();
  }
}

// What was not turned into words: it comes before what has come meanwhile.
void Generation::put_back(std::vector<Item>::iterator from, std::vector<Item>& items) {
  std::lock_guard lock(mutex_);
  queue_.insert(queue_.begin(), std::make_move_iterator(from), std::make_move_iterator(items.end()));
}

// False: a stream has enough to send; the rest of the item stays in it.
bool Generation::take(Item& item, ReplyWriter& writer, std::string& out) {
  ReplyState& state = replies_[static_cast<size_t>(item.reply)];
  if (state.ended) return true;
  state.usage = item.usage;
  for (size_t i = 0; i < item.ids.size() && !state.ended; ++i) {
    if (out.size() > kStreamBytes && writer.is_stream()) {
      item.ids.erase(item.ids.begin(), item.ids.begin() + static_cast<int64_t>(i));
      item.logprobs.erase(item.logprobs.begin(),
                          item.logprobs.begin() + static_cast<int64_t>(std::min(i, item.logprobs.size())));
      return false;
    }
    take_token(item.ids[i], i < item.logprobs.size() ? &item.logprobs[i] : nullptr, item.reply, writer, out);
  }
  if (!item.finished || state.ended) return true;
  switch (item.reason) {
    case FinishReason::Stop:
      end_reply(item.reply, EndReason::Stop, writer, out);
      break;
    case FinishReason::Length:
      end_reply(item.reply, EndReason::Length, writer, out);
      break;
    case FinishReason::Cancelled:
      error_ = ApiError(503, "the request was cancelled: the server is shutting down", {}, "cancelled");
      break;
    case FinishReason::Error:
      error_ = ApiError(500, item.error.empty() ? "the engine failed" : item.error, {}, "engine_error");
      cancel();
  }
  return true;
}

void Generation::take_token(int32_t id, const TokenLogprob* logprob, int32_t reply, ReplyWriter& writer,
                            std::string& out) {
  ReplyState& state = replies_[static_cast<size_t>(reply)];
  ++state.tokens;
  const auto& stops = setup_.stop_ids;
  if (std::find(stops.begin(), stops.end(), id) != stops.end()) return;
  if (setup_.tokenizer->is_special(id)) return;
  const bool reasoning = state.parser.in_reasoning();
  if (reasoning) ++state.reasoning_tokens;
  // Log-probabilities are the answer's: not those of reasoning, tags and calls.
  if (logprob && !reasoning && !state.call_open)
    state.logprobs.push(entry(id, *logprob), setup_.tokenizer->is_added(id));
  const auto events = state.parser.push(setup_.tokenizer->token_bytes(id), setup_.tokenizer->is_added(id));
  hand_over(events, reply, writer, out);
}

// The parser's events, as pieces.
void Generation::hand_over(const std::vector<OutputEvent>& events, int32_t reply, ReplyWriter& writer,
                           std::string& out) {
  ReplyState& state = replies_[static_cast<size_t>(reply)];
  for (const OutputEvent& event : events) {
    Piece piece;
    piece.reply = reply;
    piece.call = event.index;
    piece.text = event.text;
    switch (event.kind) {
      case OutputEvent::Kind::Reasoning:
        piece.kind = Piece::Kind::Reasoning;
        state.logprobs.clear();
        break;
      case OutputEvent::Kind::Content:
        piece.kind = Piece::Kind::Content;
        piece.logprobs = state.logprobs.claim(event.text);
        break;
      case OutputEvent::Kind::CallBegin:
        piece.kind = Piece::Kind::CallBegin;
        piece.name = event.name;
        piece.id = random_id("call_");
        state.logprobs.clear();
        state.call_open = true;
        break;
      case OutputEvent::Kind::CallArguments:
        piece.kind = Piece::Kind::CallArguments;
        break;
      case OutputEvent::Kind::CallEnd:
        state.call_open = false;
        state.calls += event.complete;
        piece.kind = Piece::Kind::CallEnd;
        piece.complete = event.complete;
        break;
      case OutputEvent::Kind::Stop:
        state.stop_string = setup_.stop[static_cast<size_t>(event.index)];
        return end_reply(reply, EndReason::StopString, writer, out);
      case OutputEvent::Kind::Enough:
        return end_reply(reply, EndReason::ToolCalls, writer, out);
    }
    writer.piece(piece, out);
  }
}

void Generation::end_reply(int32_t reply, EndReason reason, ReplyWriter& writer, std::string& out) {
  ReplyState& state = replies_[static_cast<size_t>(reply)];
  if (state.ended) return;
  if (reason == EndReason::Stop || reason == EndReason::Length) {
    hand_over(state.parser.finish(reason == EndReason::Stop), reply, writer, out);
    if (state.ended) return;  // a stop string, or the one call, was completed by its end
  }
  state.ended = true;
  --open_;
  ReplyEnd end;
  end.reply = reply;
  end.reason = reason;
  if (reason == EndReason::StopString) end.stop_string = state.stop_string;
  if (reason == EndReason::Stop && state.calls > 0) end.reason = EndReason::ToolCalls;
  writer.finish(end, out);
  // Nobody waits for what a stopped reply would still say.
  if (open_ == 0 && reason != EndReason::Length && reason != EndReason::Stop) cancel();
}

LogprobEntry Generation::entry(int32_t id, const TokenLogprob& logprob) const {
  LogprobEntry entry;
  entry.chosen = {std::string(setup_.tokenizer->token_bytes(id)), id, logprob.logprob};
  for (const auto& [other, value] : logprob.top)
    entry.top.push_back({std::string(setup_.tokenizer->token_bytes(other)), other, value});
  return entry;
}

ReplyUsage Generation::usage() const {
  ReplyUsage usage;
  usage.prompt_tokens = setup_.prompt_tokens;
  for (const ReplyState& state : replies_) {
    usage.cached_tokens = std::max(usage.cached_tokens, state.usage.cached_tokens);
    usage.completion_tokens += state.tokens;
    usage.reasoning_tokens += state.reasoning_tokens;
    usage.drafted_tokens += state.usage.drafted_tokens;
    usage.accepted_tokens += state.usage.accepted_tokens;
    usage.queue_seconds = std::max(usage.queue_seconds, state.usage.queue_seconds);
    usage.prefill_seconds = std::max(usage.prefill_seconds, state.usage.prefill_seconds);
    usage.decode_seconds = std::max(usage.decode_seconds, state.usage.decode_seconds);
  }
  return usage;
}

}  // namespace quern
