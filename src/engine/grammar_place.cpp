#include "engine/grammar_place.h"

namespace quern {

GrammarPlace::GrammarPlace(const Request& request)
    : grammar_(request.grammar), after_id_(request.grammar_after_id) {
  if (grammar_ && after_id_ < 0) matcher_.emplace(grammar_);
}

bool GrammarPlace::take(int32_t id) {
  if (matcher_) return matcher_->accept(id);
  if (grammar_ && id == after_id_) matcher_.emplace(grammar_);
  return true;
}

}  // namespace quern
