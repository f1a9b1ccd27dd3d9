// What a model wrote, as it comes, taken apart into reasoning, answer and tool calls: one state machine over bytes.
// Any split of the stream gives the result of the whole; nothing the model wrote is lost; nothing it wrote is an error.
//
//   reply     := [reasoning </think>] (content | call)*
//   call      := <tool_call> function+ </tool_call>
//   function  := <function=NAME> (<parameter=KEY> value </parameter>)* </function>
//
// White space is free between the tags. The rules, where the model strays from that:
//
// Reasoning. Whether the reply starts inside it is said by the prompt (`thinking`), not guessed. It ends at </think>;
//   newlines at its ends and those in front of the answer belong to the tags. A </think> outside reasoning is
//   dropped, a <think> outside opens a block.
// Calls in reasoning. A complete call of a declared tool that ends the reply without </think> is a call. If anything
//   but a further call follows, or the block is closed after it, it was talk: reasoning.
// Tags that are tokens. Where the tokenizer has <think>, </think>, <tool_call> and </tool_call> as single tokens
//   (`tags_are_tokens`), only the tokens count, except that a spelled <tool_call> counts in front of a well-formed
//   <function=NAME> of a declared tool. Elsewhere the spelling counts.
// Calls that are slightly off. A declared <function=NAME> at the start of a line needs no <tool_call>. </tool_call>,
//   </function> and, at the end of the reply or in front of </function></tool_call>, </parameter> may be missing. A
//   call with an undeclared name is passed on. {"name", "arguments"} as JSON inside <tool_call> is a call. What
//   is none of these is content as it was written, tags included.
// Values. One newline (LF or CRLF) after <parameter=KEY> and one in front of </parameter> belong to the tags; every other
//   byte is the value. </parameter> closes only where <parameter=, </function>, </tool_call> or the end follows, so
//   that a value may hold the tag. A value of type string streams; one of another type is converted when complete
//   (tool_schema.h). The deltas of a call are one JSON object; of a call that a limit cut short they are the beginning
//   of one, "{" at least, which no reader takes for the whole.
// Stop strings are looked for in the answer: not in reasoning, not in calls. The stop that is complete first counts, of
//   those complete at the same byte the longest. Only what may still become a stop is held back.
// Bytes that are not UTF-8 become U+FFFD, one for each maximal prefix; an incomplete tail waits for its rest.
// Newlines between the answer and a call, and white space between calls, belong to the tags.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/tool_schema.h"

namespace quern {

struct OutputEvent {
  enum class Kind : uint8_t {
    Reasoning,      // text
    Content,        // text
    CallBegin,      // index, name
    CallArguments,  // index, text: the next piece of the arguments' JSON
    CallEnd,  // index; complete: false where a limit cut the call short; text is then the call as written
    Stop,     // index of the stop string; nothing follows
    Enough,   // max_calls calls are complete; nothing follows
  };
  Kind kind;
  std::string text = {};
  std::string name = {};
  int index = 0;
  bool complete = true;

  bool operator==(const OutputEvent&) const = default;
};

struct OutputParserOptions {
  bool thinking = false;        // the reply starts inside reasoning (RenderedPrompt::opens_thinking)
  bool split_reasoning = true;  // false: think tags are content (text completions)
  bool tags_are_tokens =
      false;   // the tokenizer has the four tags as tokens, and push() says which bytes are one
  Json tools;  // OpenAI's array; empty or null: calls are content
  std::vector<std::string> stop = {};
  int max_calls = 0;  // 0: any number
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);

  // `control`: the bytes are the spelling of one control token, whole.
  std::vector<OutputEvent> push(std::string_view bytes, bool control = false);
  // `turn_ended`: the model ended its turn; else a limit or the client did.
  std::vector<OutputEvent> finish(bool turn_ended);

  bool done() const { return done_; }  // Stop or Enough was said
  bool in_reasoning() const { return state_ == State::Reasoning || tentative_; }
  int calls() const { return calls_; }  // complete ones

 private:
  enum class State : uint8_t { Reasoning, Content, Between, Value, AfterFunction, AfterCall, JsonCall };
  enum class Match : uint8_t { No, Partial, Yes };

  // ---- bytes
  void accept(std::string_view text, bool control);
  void accept_bytes(std::string_view bytes);
  void flush_tail();
  void run(bool at_end);
  bool step(bool at_end);  // false: more input is needed

  bool step_reasoning(bool at_end);
  bool step_content(bool at_end);
  bool step_between(bool at_end);
  bool step_value(bool at_end);
  bool step_after_function(bool at_end);
  bool step_after_call(bool at_end);
  bool step_json(bool at_end);

  // ---- matching at a place of pending_
  Match match(size_t at, std::string_view literal) const;
  Match match_tag(size_t at, std::string_view tag) const;  // one of the four; a token where tags are tokens
  bool is_token(size_t at, std::string_view tag) const;
  size_t skip_space(size_t at) const;
  Match match_call(size_t at, bool at_end, bool declared_only, size_t& header, bool& json) const;
  Match match_header(size_t at, bool at_end, std::string& name, size_t& end) const;
  Match match_value_end(size_t at, bool at_end, size_t& tag_end) const;

  // ---- calls
  void open_call(size_t header_at, bool wrapped);
  void begin_call(std::string name);
  void begin_parameter(const std::string& key);
  void value_text(std::string_view text);
  void end_value();
  void end_function(bool complete);
  void leave_call();
  void arguments(std::string text);

  // ---- output
  void consume(size_t n);  // drops from pending_; inside a call of reasoning keeps it in held_
  void refute();           // the call in reasoning was talk
  void emit(OutputEvent event);
  void reasoning(std::string_view text);
  void content(std::string_view text);
  void content_after_stops(std::string_view text);
  void hold_newlines(OutputEvent::Kind kind, std::string_view text);
  void release_stops();

  OutputParserOptions options_;
  ToolSchemas tools_;
  State state_;
  bool done_ = false;
  bool turn_ended_ = false;

  std::string tail_;             // of an incomplete character
  std::string pending_, marks_;  // not yet decided; marks: 0 text, 1 first byte of a token, 2 its others
  size_t scanned_ = 0, json_begin_ = 0;  // of pending_, in JsonCall

  bool line_start_ = true;        // of content
  bool content_begun_ = false;    // something but white space was written since the last </think>
  bool content_written_ = false;  // … at all
  bool after_think_ = false;      // newlines in front of the answer are to be dropped
  bool after_call_ = false;       // white space after a call is to be dropped
  bool reasoning_begun_ = false;
  std::string held_newlines_;  // at the end of reasoning or content
  std::string held_stop_;      // what may become a stop string
  std::string held_space_;     // after a call

  std::string written_;   // of the call that is open, tags included
  bool wrapped_ = false;  // <tool_call> opened this call
  int index_ = 0, calls_ = 0;
  std::string name_;
  bool first_parameter_ = true, value_begun_ = false;
  JsonTypes types_ = kAnyType;
  std::string value_;  // of a parameter that is not a string

  // A call inside reasoning that may turn out to be talk.
  bool tentative_ = false;
  std::string held_;  // its bytes
  std::vector<OutputEvent> held_events_;
  int held_index_ = 0, held_calls_ = 0;

  std::vector<OutputEvent> events_;
};

}  // namespace quern
