// Whether drafts pay for a kind of request, told from what the policy (draft_policy.h) wants of its replies step by step.
// It decides nothing: it is what the log and /metrics say.
//
// Kinds are what moves acceptance: where drafts come from, and how ids are chosen. Off: kOffAfter steps in a row no reply of
// the kind wanted a draft, but for probes. On again: kOnAfter in a row did.
#pragma once

#include <cstdint>

namespace quern {

struct Request;

enum class RequestKind : uint8_t { Greedy, Sampled, Grammar };
inline constexpr int kRequestKinds = 3;
RequestKind kind_of(const Request& request);
const char* name(RequestKind kind);  // "greedy", "sampled", "grammar"

class DraftSwitch {
 public:
  // A reply looked for drafts; `pays`: it wanted some. True when that changed the switch.
  bool observe(bool pays);
  bool on() const { return on_; }
  int64_t changes() const { return changes_; }

  static constexpr int kOffAfter = 32, kOnAfter = 8;

 private:
  bool on_ = true;
  int against_ = 0;  // observations in a row that contradict it
  int64_t changes_ = 0;
};

}  // namespace quern
