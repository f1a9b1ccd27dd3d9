#include "cache/sequence.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "ops/rows.h"

namespace quern {
namespace {

int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

// Calls move(bytes on the device, offset in the image, count) for every contiguous piece of the snapshot at
// `position`.
template <typename F>
void for_each_piece(const SequenceMemory& m, int32_t slot, int64_t position, F&& move) {
  const CacheShape& shape = m.state.shape();
  int64_t offset = 0;
  // Rows first … first + n - 1 of a slot's ring [slots, ≥ size, d], which has position p at p mod size.
  const auto rows = [&](const Tensor& ring, int64_t size, int64_t first, int64_t n) {
    const int64_t bytes = row_bytes(ring.dtype, ring.cols());
    std::byte* rows_of_slot = ring.data + slot * ring.shape[1] * bytes;
    for (int64_t i = 0; i < n; ++i, offset += bytes)
      move(rows_of_slot + (first + i) % size * bytes, offset, bytes);
  };
  for (int i = 0; i < shape.n_delta_layers; ++i) {
    const DeltaNetState& state = m.state.delta(i);
    const int64_t bytes = state.M.bytes() / state.M.shape[0];
    move(state.M.data + slot * bytes, offset, bytes);
    offset += bytes;
    rows(state.ring, kConvRing, position - kConvHistory, kConvHistory);
  }
  rows(m.state.ple_ring(), kPleRing, position - kPleHistory, kPleHistory);
  if (shape.drafts) {
    rows(m.kv.layer(shape.draft_layer()).ring, kConvRing, position - 1 - kDraftKeys, kDraftKeys);
    rows(m.state.hidden_ring(), kHiddenRing, position - 1, 1);
  }
  QUERN_CHECK(offset == snapshot_bytes(shape), "the snapshot's pieces are its layout");
}

}  // namespace

SequenceMemory::SequenceMemory(Stream& s, const CacheShape& shape, int32_t n_pages, int32_t n_slots)
    : stream(s), kv(s.device(), shape, n_pages, n_slots), state(s.device(), shape, n_slots), pages(n_pages) {}

int64_t SequenceMemory::bytes(const CacheShape& shape, int32_t n_pages, int32_t n_slots) {
  const int64_t key_rings = int64_t{shape.n_attention_layers()} * kConvRing * shape.d_index * 4;
  return n_pages * KvCache::page_bytes(shape) + n_slots * (StateCache::slot_bytes(shape) + key_rings);
}

std::unique_ptr<Sequence> Sequence::create(SequenceMemory& memory) {
  const int32_t slot = memory.state.acquire(memory.stream);
  if (slot < 0) return nullptr;
  return std::unique_ptr<Sequence>(new Sequence(memory, slot));
}

Sequence::~Sequence() {
  release_pages();
  if (slot_ >= 0) memory_.state.release(slot_);
}

void Sequence::release_pages() {
  for (const int32_t page : pages_) memory_.pages.release(page);
  pages_.clear();
}

void Sequence::drop_ids(int64_t n) {
  QUERN_CHECK(n >= length_ && n <= static_cast<int64_t>(ids_.size()), "drop_ids would forget computed ids");
  ids_.resize(n);
}

int64_t Sequence::pages_missing(int64_t n) const {
  return std::max<int64_t>(0, pages_for(n) - static_cast<int64_t>(pages_.size()));
}

bool Sequence::reserve(int64_t n) {
  QUERN_CHECK(!swapped(), "reserve of a swapped sequence");
  return memory_.pages.allocate(static_cast<int32_t>(pages_missing(n)), pages_);
}

void Sequence::trim() {
  const auto needed = static_cast<size_t>(pages_for(std::max(length_, static_cast<int64_t>(ids_.size()))));
  for (; pages_.size() > needed; pages_.pop_back()) memory_.pages.release(pages_.back());
}

void Sequence::begin_step(Role role, int32_t n) {
  QUERN_CHECK(!swapped() && !in_step(), "a step of a sequence that is swapped out or has one in flight");
  QUERN_CHECK(n > 0 && (role == Role::Prefill || n <= kMaxDrafts + 1), fmt::format("a step of {} rows", n));
  QUERN_CHECK(pages_missing(length_ + n) == 0, fmt::format("no page for position {}", length_ + n - 1));
  if (memory_.state.shape().drafts && role == Role::Prefill)
    QUERN_CHECK(draft_length_ >= length_, "decoded rows that the draft block has not seen");
  step_rows_ = n;
  step_role_ = role;
}

void Sequence::commit(int32_t a) {
  QUERN_CHECK(in_step() && 0 <= a && a <= step_rows_, fmt::format("commit({}) of {} rows", a, step_rows_));
  QUERN_CHECK(step_role_ == Role::Decode || a == step_rows_, "a prefill step commits all its rows");
  QUERN_CHECK(static_cast<int64_t>(ids_.size()) >= length_ + a, "committed rows without ids");
  length_ += a;
  n_pending_ = step_role_ == Role::Decode ? a : 0;
  if (step_role_ == Role::Prefill && memory_.state.shape().drafts) draft_length_ = length_;
  step_rows_ = 0;
}

void Sequence::settle() {
  QUERN_CHECK(!swapped() && !in_step(),
              "the state of a sequence that is swapped out or has a step in flight");
  memory_.state.commit(memory_.stream, slot_, n_pending_);
  n_pending_ = 0;
}

std::unique_ptr<Sequence> Sequence::fork() {
  settle();
  const auto n_full = static_cast<size_t>(n_full_pages());
  const auto n_used = static_cast<size_t>(pages_for(std::max(length_, draft_length_)));
  auto child = create(memory_);
  if (!child) return nullptr;
  std::vector<int32_t> copies;
  if (!memory_.pages.allocate(static_cast<int32_t>(n_used - n_full), copies)) return nullptr;
  for (size_t i = 0; i < n_full; ++i) {
    memory_.pages.retain(pages_[i]);
    child->pages_.push_back(pages_[i]);
  }
  for (size_t i = n_full; i < n_used; ++i) {
    memory_.kv.copy_page(memory_.stream, copies[i - n_full], pages_[i]);
    child->pages_.push_back(copies[i - n_full]);
  }
  memory_.kv.copy_slot(memory_.stream, child->slot_, slot_);
  memory_.state.copy_slot(memory_.stream, child->slot_, slot_);
  child->ids_ = ids_;
  child->length_ = length_;
  child->draft_length_ = draft_length_;
  return child;
}

Snapshot Sequence::snapshot() {
  QUERN_CHECK(length_ > 0 && length_ % kPageTokens == 0, fmt::format("a snapshot at position {}", length_));
  QUERN_CHECK(!memory_.state.shape().drafts || draft_length_ >= length_,
              "a snapshot before the draft block has seen its past");
  settle();
  Snapshot snapshot;
  snapshot.position = length_;
  snapshot.bytes.resize(snapshot_bytes(memory_.state.shape()));
  for_each_piece(memory_, slot_, length_, [&](const std::byte* piece, int64_t offset, int64_t n) {
    memory_.stream.download(snapshot.bytes.data() + offset, piece, n);
  });
  memory_.stream.synchronize();
  return snapshot;
}

void Sequence::restore(std::span<const int32_t> ids, std::span<const int32_t> pages,
                       const Snapshot& snapshot) {
  QUERN_CHECK(ids_.empty() && pages_.empty() && !swapped(), "restore into a sequence that has a past");
  QUERN_CHECK(snapshot.position > 0 && snapshot.position % kPageTokens == 0 &&
                  static_cast<int64_t>(ids.size()) == snapshot.position &&
                  static_cast<int64_t>(pages.size()) * kPageTokens == snapshot.position,
              "a snapshot comes with the ids and full pages before it");
  QUERN_CHECK(static_cast<int64_t>(snapshot.bytes.size()) == snapshot_bytes(memory_.state.shape()),
              "a snapshot of another shape");
  for_each_piece(memory_, slot_, snapshot.position, [&](std::byte* piece, int64_t offset, int64_t n) {
    memory_.stream.upload(piece, snapshot.bytes.data() + offset, n);
  });
  for (const int32_t page : pages) {
    memory_.pages.retain(page);
    pages_.push_back(page);
  }
  ids_.assign(ids.begin(), ids.end());
  length_ = snapshot.position;
  draft_length_ = memory_.state.shape().drafts ? length_ : 0;
}

void Sequence::swap_out() {
  settle();
  const int64_t n_used = pages_for(std::max(length_, draft_length_)), page_bytes = memory_.kv.page_bytes();
  image_.resize(n_used * page_bytes + memory_.kv.slot_bytes() + memory_.state.image_bytes());
  std::byte* to = image_.data();
  for (int64_t i = 0; i < n_used; ++i, to += page_bytes)
    memory_.kv.download_page(memory_.stream, to, pages_[i]);
  memory_.kv.download_slot(memory_.stream, to, slot_);
  memory_.state.download_slot(memory_.stream, to + memory_.kv.slot_bytes(), slot_);
  memory_.stream.synchronize();
  release_pages();
  memory_.state.release(slot_);
  slot_ = -1;
}

bool Sequence::swap_in() {
  QUERN_CHECK(swapped(), "swap_in of a sequence that is not swapped out");
  const int64_t n_used = pages_for(std::max(length_, draft_length_)), page_bytes = memory_.kv.page_bytes();
  if (memory_.state.n_free() == 0 || !memory_.pages.allocate(static_cast<int32_t>(n_used), pages_))
    return false;
  slot_ = memory_.state.acquire(memory_.stream);
  const std::byte* from = image_.data();
  for (int64_t i = 0; i < n_used; ++i, from += page_bytes)
    memory_.kv.upload_page(memory_.stream, pages_[i], from);
  memory_.kv.upload_slot(memory_.stream, slot_, from);
  memory_.state.upload_slot(memory_.stream, slot_, from + memory_.kv.slot_bytes());
  image_.clear();
  image_.shrink_to_fit();
  return true;
}

}  // namespace quern
