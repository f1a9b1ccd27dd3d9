// What a generation says, piece by piece, and the writers that put it into a protocol's words. A writer sees the
// same pieces whether the client asked for a stream or for one JSON value, so both say the same.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"

namespace quern {

// A token's log-probability with the spellings of the tokens in question.
struct LogprobEntry {
  struct Candidate {
    std::string bytes;  // raw: may be part of a character
    int32_t id = 0;
    float logprob = 0;
  };
  Candidate chosen;
  std::vector<Candidate> top;
};

struct Piece {
  enum class Kind : uint8_t {
    Reasoning,
    Content,        // with the log-probabilities of its tokens, where asked for
    CallBegin,      // id and name
    CallArguments,  // text: the next part of the JSON
    CallEnd,        // complete: false where a limit cut it short; text is then the call as the model wrote it
  };
  Kind kind = Kind::Content;
  int32_t reply = 0;
  std::string text;
  int32_t call = 0;  // of the reply, from 0
  bool complete = true;
  std::string id, name;
  std::vector<LogprobEntry> logprobs;
};

enum class EndReason : uint8_t { Stop, StopString, Length, ToolCalls };

struct ReplyEnd {
  int32_t reply = 0;
  EndReason reason = EndReason::Stop;
  std::string stop_string;  // the one that matched
};

struct ReplyUsage {
  int64_t prompt_tokens = 0, cached_tokens = 0;
  int64_t completion_tokens = 0, reasoning_tokens = 0;  // of all replies together
  int64_t drafted_tokens = 0, accepted_tokens = 0;
  double queue_seconds = 0, prefill_seconds = 0, decode_seconds = 0;
};

// Everything a reply said, joined.
struct WholeReply {
  std::string reasoning, content;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> calls;
  std::vector<LogprobEntry> logprobs;
  ReplyEnd end;

  void add(const Piece& piece);
};

// Appends to `out` what is to be sent. For a stream each call may add text; for one JSON value only end() does.
class ReplyWriter {
 public:
  virtual ~ReplyWriter() = default;
  virtual bool is_stream() const = 0;
  // begin() is called at once, or, where it has to know the cached tokens, with the engine's first event.
  virtual bool begins_with_first_event() const { return false; }
  virtual void begin(const ReplyUsage& usage, std::string& out) = 0;
  virtual void piece(const Piece& piece, std::string& out) = 0;
  virtual void finish(const ReplyEnd& end, std::string& out) = 0;   // one reply
  virtual void end(const ReplyUsage& usage, std::string& out) = 0;  // all replies
  virtual void error(const ApiError& error, std::string& out) = 0;  // in a stream that has begun
  virtual std::string error_body(const ApiError& error) const = 0;  // in place of a JSON value
  virtual std::string ping() { return is_stream() ? ": ping\n\n" : ""; }
};

// An identifier with that prefix and 24 random hexadecimal digits.
std::string random_id(std::string_view prefix);
int64_t unix_seconds();

}  // namespace quern
