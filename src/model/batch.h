// What one step runs: rows of several sequences, ragged, prefill chunks and decode rows mixed. Built once a
// step on the host, uploaded through one buffer; capacity, and with it every address, is fixed at
// construction.
//
// Segments are ordered decode first, otherwise as given. Logit rows keep the order of their rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cache/sequence.h"
#include "ops/batch_view.h"
#include "tensor/buffer.h"
#include "tensor/stream.h"

namespace quern {

struct BatchCapacity {
  int64_t rows = 0;      // of one step
  int64_t segments = 0;  // sequences of one step
  int64_t logits = 0;    // rows that want logits
  int64_t context = 0;   // longest sequence; bounds page lists
};

// Which rows of a segment want logits: its last n ones.
inline constexpr int32_t kAllRows = INT32_MAX;

struct BatchItem {
  Sequence* sequence = nullptr;
  // The ids of the rows, from position sequence->length() on. Prefill: as appended. Decode: the id that runs
  // next, then up to kMaxDrafts drafted ones, which need not be appended.
  std::span<const int32_t> ids;
  Role role = Role::Prefill;
  int32_t n_logits = 0;
};

enum class HiddenFrom : uint8_t {
  Trunk,  // true hidden rows, of positions that are computed
  Draft,  // the draft block's own, of the pass before: a chained pass
};

// Rows of the draft block: the entries from `first` on, whose ids are `ids`. A sequence's first pass after a
// step gives the entries [draft_length, ids().size()) from the trunk's rows: draft_length grows to their end. Each
// further pass of a chain gives one entry more: its id is the drafted one, its hidden row the draft block's own of
// the pass before.
struct DraftItem {
  Sequence* sequence = nullptr;
  int64_t first = 0;  // ≥ 1: entry 0 does not exist
  std::span<const int32_t> ids;
  HiddenFrom hidden = HiddenFrom::Draft;
};

class Batch {
 public:
  Batch(Device device, const BatchCapacity& capacity);

  // Each begins anew. build calls begin_step on every sequence; the caller commits after forward. A sequence
  // occurs at most once. Going over the capacity is a bug.
  void build(std::span<const BatchItem> items);
  // For Model::draft; logits for the last row of each item, in the order of the items.
  void build_draft(std::span<const DraftItem> items);
  void upload(Stream& s);  // no-op on the CPU

  const BatchCapacity& capacity() const { return capacity_; }
  int64_t serial() const { return serial_; }  // no other batch of the process has or had it
  int64_t n_rows() const { return n_rows_; }
  int64_t n_decode_rows() const { return n_decode_rows_; }
  int64_t n_logits() const { return n_logits_; }
  int64_t n_decode_logits() const { return n_decode_logits_; }
  // Where item i's logits begin among the logits rows; it has min(n_logits, its rows) of them.
  int64_t first_logits(size_t item) const { return first_logits_[item]; }

  // Memory of the device, after upload.
  const BatchView& view() const { return view_; }
  const int32_t* logit_rows() const { return device<int32_t>(at_.logit_rows); }  // [n_logits] row of each
  // What the draft block runs: beside a prefill, the entries of the prefill rows' own positions; after build_draft, the
  // given ones. positions are those of the hidden rows (entry - 1), ids those of the entries.
  const BatchView& draft_view() const { return draft_view_; }
  // [draft rows] where each takes its hidden row from: a trunk row, kFromRing, kFromDraft (ops/rows.h)
  const int32_t* draft_source() const { return device<int32_t>(at_.draft_source); }

 private:
  // Host staging, and on CUDA the same layout on the device: byte offsets of every array, fixed by the
  // capacity. The page lists come last, so that an upload ends where they do.
  struct Layout {
    int64_t ids, windows, positions, segment_of, segments;  // of view()
    int64_t draft_ids, draft_positions, draft_segment_of, draft_segments, draft_source;
    int64_t logit_rows, page_tables, size;
  };
  static Layout lay_out(const BatchCapacity& capacity);
  template <typename T>
  T* host(int64_t offset) const {
    return reinterpret_cast<T*>(host_.data() + offset);
  }
  template <typename T>
  const T* device(int64_t offset) const {
    return reinterpret_cast<const T*>((on_device_.data() ? on_device_ : host_).data() + offset);
  }
  void clear();
  // Appends the sequence's page list that covers n tokens; its offset.
  int32_t add_pages(const Sequence& sequence, int64_t n_tokens);
  void add_segment(const BatchItem& item);
  void add_draft_rows(const Segment& trunk);

  BatchCapacity capacity_;
  int64_t serial_ = 0;
  Layout at_;
  Buffer host_, on_device_;
  int64_t n_rows_ = 0, n_decode_rows_ = 0, n_logits_ = 0, n_decode_logits_ = 0;
  int64_t n_page_entries_ = 0;
  std::vector<int64_t> first_logits_;
  BatchView view_, draft_view_;
};

}  // namespace quern
