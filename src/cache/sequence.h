// Everything that belongs to one conversation, as one unit: its ids, its pages, its slot of recurrent state,
// and how much of it is computed. Nobody else holds or changes per-sequence state.
//
//   ids       every id that is known: prompt, reply, and the id that runs next
//   length    positions [0, length) are computed: their K, V and index keys are in the pages
//   pending   the last `pending` of them are not in the delta net's M yet; they wait in the slot's pending
//   rows
//
// A step: append what is known, reserve pages, put it into a Batch (begin_step), run Model::forward, then
// commit(a): the first a rows of the step count, the others never happened. A prefill step commits all its
// rows; a decode step of 1 + k rows, k of them drafts, commits any a ≤ 1 + k. The rings hold the recent past
// by position, so dropped rows need no undoing; M is brought up to date from the pending rows by the next
// step, or before the state is copied.
//
// The draft block (MTP) has one entry a position as well; entry i needs the wide hidden row of i-1 and the id
// of i, and lies in the page of i. draft_length counts the entries made from true hidden rows: prefill makes
// them along the way, Model::draft those of committed decode rows (it must run before 8 + 1 more rows are
// committed).
//
// Pages beyond the last full one have this sequence as their only holder; full ones may be shared. Not
// thread-safe: the engine's thread owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/page_pool.h"
#include "cache/snapshot.h"
#include "cache/state_cache.h"
#include "ops/batch_view.h"

namespace quern {

// What sequences live in.
struct SequenceMemory {
  Stream& stream;
  KvCache kv;
  StateCache state;
  PagePool pages;
  SequenceMemory(Stream& s, const CacheShape& shape, int32_t n_pages, int32_t n_slots);
  static int64_t bytes(const CacheShape& shape, int32_t n_pages, int32_t n_slots);
};

class Sequence {
 public:
  // Null when no slot is free.
  static std::unique_ptr<Sequence> create(SequenceMemory& memory);
  ~Sequence();  // releases pages and slot
  Sequence(const Sequence&) = delete;
  Sequence& operator=(const Sequence&) = delete;

  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t length() const { return length_; }
  int64_t draft_length() const { return draft_length_; }
  int32_t n_pending() const { return n_pending_; }
  int32_t slot() const { return slot_; }
  std::span<const int32_t> pages() const { return pages_; }
  int64_t n_full_pages() const { return length_ / kPageTokens; }
  bool swapped() const { return slot_ < 0; }

  void append(int32_t id) { ids_.push_back(id); }
  void append(std::span<const int32_t> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }
  // Forgets ids that were not computed: ids()[n …], n ≥ length.
  void drop_ids(int64_t n);

  // Makes sure pages exist for positions [0, n); false, and nothing changed, when the pool is short.
  bool reserve(int64_t n);
  int64_t pages_missing(int64_t n) const;  // how many reserve(n) would take
  void trim();                             // gives back pages beyond those that [0, ids) need

  // Batch says that n rows from `length` on run next; the pages are reserved.
  void begin_step(Role role, int32_t n);
  // The first a rows of the step count; their ids are in ids(). Without a step in flight: a bug.
  void commit(int32_t a);
  bool in_step() const { return step_rows_ > 0; }
  // Entries [0, n) of the draft block come from true hidden rows.
  void set_draft_length(int64_t n) { draft_length_ = n; }

  // A second sequence with the same past: shares the full pages, copies the partial one and the slot. Null
  // when a slot or page is missing.
  std::unique_ptr<Sequence> fork();

  // length must be a multiple of 64 and > 0, and the draft block's entries must reach it. Bytes only: whoever
  // keeps it retains pages()[0, length / 64) as well.
  Snapshot snapshot();
  // Into a fresh sequence (nothing appended): the computed ids, their full pages (a reference each is taken),
  // the state.
  void restore(std::span<const int32_t> ids, std::span<const int32_t> pages, const Snapshot& snapshot);

  // Moves pages and state to host memory and gives up pages and slot; back again bit for bit, into other
  // pages and another slot. swap_in is false, and changes nothing, when a slot or page is missing.
  void swap_out();
  bool swap_in();
  int64_t swapped_bytes() const { return static_cast<int64_t>(image_.size()); }

 private:
  explicit Sequence(SequenceMemory& memory, int32_t slot) : memory_(memory), slot_(slot) {}
  void settle();  // pending rows go into M
  void release_pages();

  SequenceMemory& memory_;
  int32_t slot_ = -1;
  std::vector<int32_t> ids_;
  std::vector<int32_t> pages_;
  int64_t length_ = 0;
  int64_t draft_length_ = 0;
  int32_t n_pending_ = 0;
  int32_t step_rows_ = 0;
  Role step_role_ = Role::Prefill;
  std::vector<std::byte> image_;  // swapped out: pages, index-key rings, state
};

}  // namespace quern
