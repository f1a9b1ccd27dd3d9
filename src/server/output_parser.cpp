// The states; what a tag is and where one is are in output_parser_tags.cpp.
#include "server/output_parser.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/json_repair.h"
#include "base/utf8.h"
#include "server/output_parser_tags.h"

namespace quern {

using namespace tags;

namespace {

using Kind = OutputEvent::Kind;

}  // namespace

OutputParser::OutputParser(OutputParserOptions options)
    : options_(std::move(options)),
      tools_(options_.tools),
      state_(options_.thinking && options_.split_reasoning ? State::Reasoning : State::Content) {
  std::erase(options_.stop, "");
}

std::vector<OutputEvent> OutputParser::push(std::string_view bytes, bool control) {
  if (!done_ && !bytes.empty()) {
    if (control) {
      flush_tail();
      accept(repair_utf8(bytes), true);
    } else {
      accept_bytes(bytes);
    }
    run(false);
  }
  return std::exchange(events_, {});
}

std::vector<OutputEvent> OutputParser::finish(bool turn_ended) {
  if (!done_) {
    turn_ended_ = turn_ended;
    flush_tail();
    run(true);
    // Nothing follows: what was held back is text after all.
    if (state_ == State::Reasoning) {
      emit({.kind = Kind::Reasoning, .text = std::exchange(held_newlines_, "")});
    } else if (!done_) {
      release_stops();
      emit({.kind = Kind::Content, .text = std::exchange(held_newlines_, "")});
    }
    done_ = true;
  }
  return std::exchange(events_, {});
}

// ---- bytes

void OutputParser::accept(std::string_view text, bool control) {
  if (text.empty()) return;
  pending_ += text;
  marks_.append(text.size(), control ? 2 : 0);
  if (control) marks_[marks_.size() - text.size()] = 1;
}

void OutputParser::accept_bytes(std::string_view bytes) {
  std::string joined;
  if (!tail_.empty()) {
    joined = tail_ + std::string(bytes);
    tail_.clear();
    bytes = joined;
  }
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char c = decode_utf8(bytes, at);
    if (c.valid) {
      text += bytes.substr(at, c.size);
    } else if (c.truncated) {
      tail_ = bytes.substr(at);
      break;
    } else {
      append_utf8(text, 0xfffd);
    }
    at += c.size;
  }
  accept(text, false);
}

void OutputParser::flush_tail() {
  if (tail_.empty()) return;
  accept(repair_utf8(std::exchange(tail_, "")), false);
}

void OutputParser::run(bool at_end) {
  while (!done_ && !(pending_.empty() && !at_end) && step(at_end)) {
  }
  if (done_) {
    pending_.clear();
    marks_.clear();
  }
}

bool OutputParser::step(bool at_end) {
  switch (state_) {
    case State::Reasoning:
      return step_reasoning(at_end);
    case State::Content:
      return step_content(at_end);
    case State::Between:
      return step_between(at_end);
    case State::Value:
      return step_value(at_end);
    case State::AfterFunction:
      return step_after_function(at_end);
    case State::AfterCall:
      return step_after_call(at_end);
    case State::JsonCall:
      return step_json(at_end);
  }
  return false;
}

// ---- reasoning and content

bool OutputParser::step_reasoning(bool at_end) {
  size_t i = 0;
  for (; i < pending_.size(); ++i) {
    if (marks_[i] == 0 && pending_[i] != '<') continue;
    if (marks_[i] == 2) continue;
    const Match end = match_tag(i, kThinkEnd);
    if (end == Match::Yes) {
      reasoning(std::string_view(pending_).substr(0, i));
      consume(i + kThinkEnd.size());
      held_newlines_.clear();
      state_ = State::Content;
      after_think_ = line_start_ = true;
      content_begun_ = after_call_ = reasoning_begun_ = false;
      return true;
    }
    if (end == Match::Partial && !at_end) break;
    // A second opening tag says nothing new.
    const bool at_head = !reasoning_begun_ && pending_.find_first_not_of("\r\n") == i;
    const Match open = at_head ? match_tag(i, kThink) : is_token(i, kThink) ? Match::Yes : Match::No;
    if (open == Match::Partial && !at_end) break;
    if (open == Match::Yes) {
      reasoning(std::string_view(pending_).substr(0, i));
      consume(i + kThink.size());
      return true;
    }
    if (tools_.empty()) continue;
    size_t header = 0;
    bool json = false;
    const Match call = match_call(i, at_end, true, header, json);
    if (call == Match::Partial) break;
    if (call == Match::No || json) continue;
    if (i > 0) {
      reasoning(std::string_view(pending_).substr(0, i));
      consume(i);
      return true;
    }
    tentative_ = true;
    held_index_ = index_;
    held_calls_ = calls_;
    open_call(header, header > 0);
    return true;
  }
  if (i == 0) return false;
  reasoning(std::string_view(pending_).substr(0, i));
  consume(i);
  return !pending_.empty() || at_end;
}

bool OutputParser::step_content(bool at_end) {
  if (pending_.empty()) return false;
  bool line_start = line_start_, begun = content_begun_;
  size_t i = 0;
  for (; i < pending_.size(); ++i) {
    const char c = pending_[i];
    if (marks_[i] == 2 || (marks_[i] == 0 && c != '<')) {
      line_start = c == '\n' || (line_start && is_space(c));
      begun |= !is_space(c);
      continue;
    }
    const auto before = [&] {
      content(std::string_view(pending_).substr(0, i));
      line_start_ = line_start;
      consume(i);
    };
    if (options_.split_reasoning) {
      Match tag = match_tag(i, kThinkEnd);
      if (tag == Match::Yes) {  // a stray closing tag
        before();
        if (done_) return true;
        consume(kThinkEnd.size());
        if (!content_begun_) {
          held_newlines_.clear();
          after_think_ = true;
        }
        return true;
      }
      if (tag == Match::Partial && !at_end) break;
      // Where tags are no tokens, an opening one counts at the head of the reply only.
      tag = options_.tags_are_tokens || !begun ? match_tag(i, kThink)
            : is_token(i, kThink)              ? Match::Yes
                                               : Match::No;
      if (tag == Match::Yes) {
        before();
        if (done_) return true;
        consume(kThink.size());
        release_stops();
        if (!content_begun_) held_newlines_.clear();
        emit({.kind = Kind::Content, .text = std::exchange(held_newlines_, "")});
        state_ = State::Reasoning;
        reasoning_begun_ = false;
        return true;
      }
      if (tag == Match::Partial && !at_end) break;
    }
    if (!tools_.empty()) {
      if (match_tag(i, kCallEnd) == Match::Yes) {  // a stray closing tag
        before();
        if (!done_) consume(kCallEnd.size());
        return true;
      }
      if (match_tag(i, kCallEnd) == Match::Partial && !at_end) break;
      size_t header = 0;
      bool json = false;
      Match call = match_call(i, at_end, false, header, json);
      if (call != Match::No && header == i && !line_start && match(i, kCall) != Match::Partial)
        call = Match::No;
      if (call == Match::Partial) break;
      if (call == Match::Yes) {
        if (i > 0) {
          before();
          return true;
        }
        release_stops();
        if (done_) return true;
        held_newlines_.clear();
        if (json) {
          state_ = State::JsonCall;
          scanned_ = json_begin_ = header;
        } else {
          open_call(header, header > 0);
        }
        return true;
      }
    }
    line_start = false;
    begun = true;
  }
  if (i == 0) return false;
  content(std::string_view(pending_).substr(0, i));
  line_start_ = line_start;
  consume(i);
  return !pending_.empty();
}

// ---- calls

// The header at `at` is known to be whole.
void OutputParser::open_call(size_t at, bool wrapped) {
  wrapped_ = wrapped;
  std::string name;
  size_t end = 0;
  match_header(at, true, name, end);
  written_.assign(pending_, 0, end);
  consume(end);
  begin_call(std::move(name));
}

void OutputParser::begin_call(std::string name) {
  name_ = name;
  first_parameter_ = true;
  after_think_ = false;
  content_begun_ = true;
  state_ = State::Between;
  emit({.kind = Kind::CallBegin, .name = std::move(name), .index = index_});
}

bool OutputParser::step_between(bool at_end) {
  const size_t at = skip_space(0);
  if (at == pending_.size()) {
    if (!at_end) return false;
    consume(at);
    end_function(turn_ended_);
    leave_call();
    return true;
  }
  if (tentative_ && match_tag(at, kThinkEnd) == Match::Yes) {
    refute();
    return true;
  }
  if (match(at, kParameter) == Match::Yes) {
    const size_t begin = at + kParameter.size();
    const size_t close = pending_.find_first_of(">\r\n", begin);
    const bool fits = std::min(close, pending_.size()) - begin <= kMaxName;
    if (fits && close == pending_.npos && !at_end) return false;
    if (fits && close != pending_.npos && pending_[close] == '>') {
      const std::string key = pending_.substr(begin, close - begin);
      consume(close + 1);
      begin_parameter(key);
      return true;
    }
  } else if (match(at, kFunctionEnd) == Match::Yes) {
    consume(at + kFunctionEnd.size());
    end_function(true);
    state_ = State::AfterFunction;
    return true;
  } else if (match(at, kCallEnd) == Match::Yes) {
    end_function(true);
    state_ = State::AfterFunction;
    return true;
  } else if (!at_end) {
    for (std::string_view tag : {kParameter, kFunctionEnd, kCallEnd}) {
      if (match(at, tag) == Match::Partial) return false;
    }
    if (tentative_ && match_tag(at, kThinkEnd) == Match::Partial) return false;
  }
  if (at_end && !turn_ended_ && !tentative_) {  // a limit inside a tag
    bool cut = match(at, kParameter) == Match::Yes && pending_.find_first_of(">\r\n", at) == pending_.npos;
    for (std::string_view tag : {kParameter, kFunctionEnd, kCallEnd}) cut |= match(at, tag) == Match::Partial;
    if (cut) {
      consume(pending_.size());
      end_function(false);
      leave_call();
      return true;
    }
  }
  // Something else: the call is over, and this is text.
  if (tentative_) {
    refute();
    return true;
  }
  consume(at);
  end_function(true);
  leave_call();
  return true;
}

void OutputParser::begin_parameter(const std::string& key) {
  std::string text = first_parameter_ ? "{" : ",";
  append_json_string(text, key);
  text += ':';
  types_ = tools_.types(name_, key);
  if (types_ == kStringType) text += '"';
  arguments(std::move(text));
  first_parameter_ = false;
  value_begun_ = false;
  value_.clear();
  state_ = State::Value;
}

void OutputParser::value_text(std::string_view text) {
  if (text.empty()) return;
  if (types_ != kStringType) {
    value_ += text;
    return;
  }
  std::string quoted;
  append_json_string(quoted, text);
  arguments(quoted.substr(1, quoted.size() - 2));
}

void OutputParser::end_value() { arguments(types_ == kStringType ? "\"" : argument_json(value_, types_)); }

bool OutputParser::step_value(bool at_end) {
  if (!value_begun_) {  // one newline after the opening tag
    if (pending_.empty() && !at_end) return false;
    if (pending_ == "\r" && !at_end) return false;
    value_begun_ = true;
    if (pending_.starts_with("\r\n"))
      consume(2);
    else if (pending_.starts_with('\n'))
      consume(1);
  }
  size_t i = 0;
  for (; i < pending_.size(); ++i) {
    const char c = pending_[i];
    if (c != '<' && c != '\r' && c != '\n') continue;
    if (tentative_ && c == '<') {
      const Match think = match_tag(i, kThinkEnd);
      if (think == Match::Partial && !at_end) break;
      if (think == Match::Yes || is_token(i, kCall)) {  // the block closes, or a new call opens: it was talk
        consume(i);
        refute();
        return true;
      }
    }
    size_t tag_end = 0;
    const Match end = match_value_end(i, at_end, tag_end);
    if (end == Match::Partial) break;
    if (end == Match::No) continue;
    value_text(std::string_view(pending_).substr(0, i));
    consume(tag_end);
    end_value();
    state_ = State::Between;
    return true;
  }
  value_text(std::string_view(pending_).substr(0, i));
  consume(i);
  if (!at_end) return false;
  if (tentative_) {
    refute();
    return true;
  }
  if (turn_ended_) end_value();
  end_function(turn_ended_);
  leave_call();
  return true;
}

// Closes the JSON; a call cut short by a limit stays open.
void OutputParser::end_function(bool complete) {
  if (complete)
    arguments(first_parameter_ ? "{}" : "}");
  else if (first_parameter_)
    arguments("{");
  emit({.kind = Kind::CallEnd, .text = complete ? "" : written_, .index = index_, .complete = complete});
  std::string().swap(written_);
  ++index_;
  calls_ += complete;
  if (!tentative_ && options_.max_calls > 0 && calls_ >= options_.max_calls) {
    emit({.kind = Kind::Enough});
    done_ = true;
  }
}

bool OutputParser::step_after_function(bool at_end) {
  const size_t at = skip_space(0);
  if (at == pending_.size() && !at_end) return false;
  if (at < pending_.size()) {
    const Match end = match(at, kCallEnd);
    if (end == Match::Partial && !at_end) return false;
    if (end == Match::Yes || (end == Match::Partial && !turn_ended_)) {  // whole, or cut by a limit
      consume(std::min(at + kCallEnd.size(), pending_.size()));
      leave_call();
      return true;
    }
    std::string name;
    size_t header_end = 0;
    const Match next = match_header(at, at_end, name, header_end);
    if (next == Match::Partial) return false;
    if (next == Match::Yes && (tools_.has(name) || (wrapped_ && !tentative_))) {
      consume(at);
      open_call(0, wrapped_);
      return true;
    }
  }
  leave_call();
  return true;
}

void OutputParser::leave_call() {
  after_call_ = line_start_ = true;
  state_ = tentative_ ? State::AfterCall : State::Content;
}

// Behind a call in reasoning: the end makes it one, a further call may follow, anything else makes it talk.
bool OutputParser::step_after_call(bool at_end) {
  const size_t at = skip_space(0);
  if (at == pending_.size()) {
    if (!at_end) return false;
    if (!turn_ended_) {
      refute();
      return true;
    }
    consume(at);
    tentative_ = false;
    held_.clear();
    held_newlines_.clear();
    state_ = State::Content;
    calls_ = held_calls_;
    for (OutputEvent& event : std::exchange(held_events_, {})) {
      calls_ += event.kind == Kind::CallEnd;
      emit(std::move(event));
      if (options_.max_calls > 0 && calls_ >= options_.max_calls) {
        emit({.kind = Kind::Enough});
        done_ = true;
        break;
      }
    }
    return true;
  }
  size_t header = 0;
  bool json = false;
  const Match call = match_call(at, at_end, true, header, json);
  if (call == Match::Partial) return false;
  if (call == Match::Yes && !json) {
    const bool wrapped = header > at;
    consume(at);
    open_call(header - at, wrapped);
  } else {
    refute();
  }
  return true;
}

bool OutputParser::step_json(bool at_end) {
  size_t end = std::string::npos;
  for (; scanned_ < pending_.size(); ++scanned_) {
    if (pending_[scanned_] != '<') continue;
    const Match tag = match_tag(scanned_, kCallEnd);
    if (tag == Match::Partial && !at_end) return false;
    if (tag == Match::Yes) {
      end = scanned_;
      break;
    }
  }
  if (end == std::string::npos && !at_end) return false;
  const size_t whole = end == std::string::npos ? pending_.size() : end + kCallEnd.size();
  std::string name, text;
  try {
    const Json call =
        parse_repaired_json(pending_.substr(json_begin_, std::min(end, pending_.size()) - json_begin_));
    const Json* given = call.find("name");
    const Json* values = call.find("arguments");
    if (values == nullptr) values = call.find("parameters");
    Json parsed = values == nullptr ? Json(Json::Object{}) : *values;
    if (parsed.is_string()) parsed = parse_repaired_json(parsed.as_string());
    if (given != nullptr && given->is_string() && parsed.is_object()) {
      name = given->as_string();
      text = write_json(parsed);
    }
  } catch (const Error&) {  // not JSON, so content
  }
  if (name.empty()) {
    state_ = State::Content;
    content(std::string_view(pending_).substr(0, whole));
    line_start_ = false;
    consume(whole);
    return true;
  }
  consume(whole);
  begin_call(std::move(name));
  if (text != "{}") {  // end_function writes the closing brace, or both
    arguments(text.substr(0, text.size() - 1));
    first_parameter_ = false;
  }
  end_function(true);
  leave_call();
  return true;
}

// ---- output

void OutputParser::consume(size_t n) {
  if (tentative_) held_.append(pending_, 0, n);
  if (state_ == State::Between || state_ == State::Value) written_.append(pending_, 0, n);
  pending_.erase(0, n);
  marks_.erase(0, n);
}

void OutputParser::refute() {
  tentative_ = false;
  held_events_.clear();
  index_ = held_index_;
  calls_ = held_calls_;
  state_ = State::Reasoning;
  reasoning(std::exchange(held_, ""));
}

void OutputParser::emit(OutputEvent event) {
  const bool is_text =
      event.kind == Kind::Reasoning || event.kind == Kind::Content || event.kind == Kind::CallArguments;
  if (is_text && event.text.empty()) return;
  auto& out = tentative_ ? held_events_ : events_;
  if (is_text && !out.empty() && out.back().kind == event.kind && out.back().index == event.index) {
    out.back().text += event.text;
  } else {
    out.push_back(std::move(event));
  }
}

void OutputParser::arguments(std::string text) {
  emit({.kind = Kind::CallArguments, .text = std::move(text), .index = index_});
}

void OutputParser::reasoning(std::string_view text) {
  if (!reasoning_begun_) {
    text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    if (text.empty()) return;
    reasoning_begun_ = true;
  }
  hold_newlines(Kind::Reasoning, text);
}

// Emits `text` but for the newlines at its end, which wait for what follows.
void OutputParser::hold_newlines(OutputEvent::Kind kind, std::string_view text) {
  const size_t last = text.find_last_not_of("\r\n");
  if (last == text.npos) {
    held_newlines_ += text;
    return;
  }
  std::string shown = std::exchange(held_newlines_, std::string(text.substr(last + 1)));
  shown += text.substr(0, last + 1);
  emit({.kind = kind, .text = std::move(shown)});
}

void OutputParser::content(std::string_view text) {
  if (after_think_) {
    text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
    if (text.empty()) return;
    after_think_ = false;
  }
  std::string joined;
  if (after_call_) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == text.npos) {
      held_space_ += text;
      return;
    }
    after_call_ = false;
    joined = std::exchange(held_space_, "") + std::string(text);
    text = joined;
    // Space between two texts with a call between them stays; in front of the first text it goes.
    if (!content_written_) text.remove_prefix(std::min(text.find_first_not_of("\r\n"), text.size()));
  }
  if (text.find_first_not_of(" \t\r\n") != text.npos) content_begun_ = content_written_ = true;
  if (options_.stop.empty()) return content_after_stops(text);

  held_stop_ += text;
  size_t first_end = std::string::npos, length = 0;
  int which = 0;
  for (size_t i = 0; i < options_.stop.size(); ++i) {
    const std::string& stop = options_.stop[i];
    const size_t at = held_stop_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && stop.size() > length)) {
      first_end = end;
      length = stop.size();
      which = static_cast<int>(i);
    }
  }
  if (first_end != std::string::npos) {
    content_after_stops(std::string_view(held_stop_).substr(0, first_end - length));
    emit({.kind = Kind::Content, .text = std::exchange(held_newlines_, "")});
    held_stop_.clear();
    emit({.kind = Kind::Stop, .index = which});
    done_ = true;
    return;
  }
  size_t held = 0;  // the longest end that a stop string begins with
  for (const std::string& stop : options_.stop) {
    for (size_t n = std::min(stop.size() - 1, held_stop_.size()); n > held; --n) {
      if (std::string_view(held_stop_).ends_with(std::string_view(stop).substr(0, n))) held = n;
    }
  }
  content_after_stops(std::string_view(held_stop_).substr(0, held_stop_.size() - held));
  held_stop_.erase(0, held_stop_.size() - held);
}

void OutputParser::content_after_stops(std::string_view text) {
  // Newlines wait only where a tag that they belong to may follow.
  if (!tools_.empty() || (options_.split_reasoning && !content_begun_))
    return hold_newlines(Kind::Content, text);
  emit({.kind = Kind::Content, .text = std::exchange(held_newlines_, "") + std::string(text)});
}

void OutputParser::release_stops() { content_after_stops(std::exchange(held_stop_, "")); }

}  // namespace quern
