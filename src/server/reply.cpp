#include "server/reply.h"

#include <chrono>
#include <random>

namespace quern {

void WholeReply::add(const Piece& piece) {
  switch (piece.kind) {
    case Piece::Kind::Reasoning:
      reasoning += piece.text;
      break;
    case Piece::Kind::Content:
      content += piece.text;
      logprobs.insert(logprobs.end(), piece.logprobs.begin(), piece.logprobs.end());
      break;
    case Piece::Kind::CallBegin:
      calls.push_back({piece.id, piece.name, {}});
      break;
    case Piece::Kind::CallArguments:
      calls.at(static_cast<size_t>(piece.call)).arguments += piece.text;
      break;
    case Piece::Kind::CallEnd:
      break;
  }
}

std::string random_id(std::string_view prefix) {
  static thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::string id(prefix);
  uint64_t bits = 0;
  for (int i = 0; i < 24; ++i) {
    if (i % 16 == 0) bits = engine();
    id += "0123456789abcdef"[bits & 15];
    bits >>= 4;
  }
  return id;
}

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace quern
