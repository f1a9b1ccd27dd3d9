#include "engine/reply.h"

#include <algorithm>

namespace quern {

int32_t forced_id(const Request& request, std::span<const int32_t> reply, int64_t at) {
  if (request.thinking_budget < 0 || at < request.thinking_budget) return -1;
  const int64_t place = at - request.thinking_budget;
  if (place >= static_cast<int64_t>(request.thinking_close.size())) return -1;
  const auto thought = reply.first(static_cast<size_t>(request.thinking_budget));
  if (std::find(thought.begin(), thought.end(), request.thinking_end_id) != thought.end()) return -1;
  return request.thinking_close[place];
}

}  // namespace quern
