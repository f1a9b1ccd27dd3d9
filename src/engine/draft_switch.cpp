#include "engine/draft_switch.h"

#include "engine/request.h"

namespace quern {

RequestKind kind_of(const Request& request) {
  if (request.grammar) return RequestKind::Grammar;
  return request.sampling.temperature == 0 ? RequestKind::Greedy : RequestKind::Sampled;
}

const char* name(RequestKind kind) {
  switch (kind) {
    case RequestKind::Greedy:
      return "greedy";
    case RequestKind::Sampled:
      return "sampled";
    case RequestKind::Grammar:
      return "grammar";
  }
  return "";
}

bool DraftSwitch::observe(bool pays) {
  against_ = pays == on_ ? 0 : against_ + 1;
  if (against_ < (on_ ? kOffAfter : kOnAfter)) return false;
  on_ = pays;
  against_ = 0;
  ++changes_;
  return true;
}

}  // namespace quern
