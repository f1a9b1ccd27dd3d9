#include "model/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/check.h"
#include "ops/rows.h"

namespace quern {
namespace {

int64_t pages_for(int64_t n_tokens) { return (n_tokens + kPageTokens - 1) / kPageTokens; }

}  // namespace

Batch::Layout Batch::lay_out(const BatchCapacity& c) {
  Layout at{};
  const auto place = [&](int64_t bytes) {
    const int64_t offset = at.size;
    at.size += (bytes + 255) / 256 * 256;
    return offset;
  };
  const int64_t i32 = sizeof(int32_t);
  at.ids = place(c.rows * i32);
  at.windows = place(c.rows * 3 * i32);
  at.positions = place(c.rows * i32);
  at.segment_of = place(c.rows * i32);
  at.segments = place(c.segments * static_cast<int64_t>(sizeof(Segment)));
  at.draft_ids = place(c.rows * i32);
  at.draft_positions = place(c.rows * i32);
  at.draft_segment_of = place(c.rows * i32);
  at.draft_segments = place(c.segments * static_cast<int64_t>(sizeof(Segment)));
  at.draft_source = place(c.rows * i32);
  at.logit_rows = place(c.logits * i32);
  at.page_tables = place(c.segments * pages_for(c.context) * i32);
  return at;
}

Batch::Batch(Device device, const BatchCapacity& capacity) : capacity_(capacity), at_(lay_out(capacity)) {
  static std::atomic<int64_t> serials{0};
  serial_ = ++serials;
  // Not pinned: an upload from ordinary memory has read it when it returns, so the next build may begin at once.
  host_ = Buffer(Device{}, at_.size);
  if (device.type != DeviceType::Cpu) on_device_ = Buffer(device, at_.size);
  const auto set = [&](BatchView& v, int64_t ids, int64_t positions, int64_t segment_of, int64_t segments) {
    v.ids = this->device<int32_t>(ids);
    v.positions = this->device<int32_t>(positions);
    v.segment_of = this->device<int32_t>(segment_of);
    v.segments = this->device<Segment>(segments);
    v.max_tokens = capacity.context;
    v.page_tables = this->device<int32_t>(at_.page_tables);
  };
  set(view_, at_.ids, at_.positions, at_.segment_of, at_.segments);
  view_.windows = this->device<int32_t>(at_.windows);
  set(draft_view_, at_.draft_ids, at_.draft_positions, at_.draft_segment_of, at_.draft_segments);
}

void Batch::clear() {
  n_rows_ = n_decode_rows_ = n_logits_ = n_decode_logits_ = n_page_entries_ = 0;
  view_.n_rows = view_.n_decode_rows = view_.n_segments = 0;
  draft_view_.n_rows = draft_view_.n_decode_rows = draft_view_.n_segments = 0;
}

int32_t Batch::add_pages(const Sequence& sequence, int64_t n_tokens) {
  const int64_t n = pages_for(n_tokens), offset = n_page_entries_;
  QUERN_CHECK(n <= static_cast<int64_t>(sequence.pages().size()), "a batch row without a page");
  QUERN_CHECK(n <= pages_for(capacity_.context), "a sequence longer than the batch's context");
  std::copy_n(sequence.pages().begin(), n, host<int32_t>(at_.page_tables) + offset);
  n_page_entries_ += n;
  return static_cast<int32_t>(offset);
}

void Batch::build(std::span<const BatchItem> items) {
  clear();
  first_logits_.assign(items.size(), 0);
  for (const Role role : {Role::Decode, Role::Prefill}) {
    for (size_t i = 0; i < items.size(); ++i) {
      if (items[i].role != role) continue;
      first_logits_[i] = n_logits_;
      add_segment(items[i]);
    }
    if (role == Role::Decode) {
      n_decode_rows_ = n_rows_;
      n_decode_logits_ = n_logits_;
    }
  }
  view_.n_rows = n_rows_;
  view_.n_decode_rows = n_decode_rows_;
}

void Batch::add_segment(const BatchItem& item) {
  Sequence& sequence = *item.sequence;
  const auto n = static_cast<int32_t>(item.ids.size());
  QUERN_CHECK(n_rows_ + n <= capacity_.rows && view_.n_segments < capacity_.segments,
              fmt::format("a batch beyond {} rows or {} segments", capacity_.rows, capacity_.segments));
  sequence.begin_step(item.role, n);

  Segment segment;
  segment.row = static_cast<int32_t>(n_rows_);
  segment.n_rows = n;
  segment.slot = sequence.slot();
  segment.position = static_cast<int32_t>(sequence.length());
  segment.n_pending = sequence.n_pending();
  segment.page_table = add_pages(sequence, sequence.length() + n);
  segment.role = item.role;

  // The id `back` positions before row i, -1 before the beginning.
  const auto id_before = [&](int64_t i, int64_t back) {
    const int64_t j = i - back, position = segment.position + j;
    return j >= 0 ? item.ids[j] : position >= 0 ? sequence.ids()[position] : -1;
  };
  for (int32_t i = 0; i < n; ++i) {
    const int64_t row = n_rows_ + i;
    host<int32_t>(at_.ids)[row] = item.ids[i];
    for (int back = 0; back < 3; ++back) host<int32_t>(at_.windows)[3 * row + back] = id_before(i, back);
    host<int32_t>(at_.positions)[row] = segment.position + i;
    host<int32_t>(at_.segment_of)[row] = static_cast<int32_t>(view_.n_segments);
  }
  const int32_t n_logits = std::min(item.n_logits, n);
  QUERN_CHECK(n_logits_ + n_logits <= capacity_.logits,
              fmt::format("a batch beyond {} rows of logits", capacity_.logits));
  for (int32_t i = n - n_logits; i < n; ++i)
    host<int32_t>(at_.logit_rows)[n_logits_++] = static_cast<int32_t>(n_rows_) + i;

  host<Segment>(at_.segments)[view_.n_segments++] = segment;
  n_rows_ += n;
  if (item.role == Role::Prefill) add_draft_rows(segment);
}

// Entry e of the draft block reads the hidden row of position e - 1: the row before in this step, or the
// slot's ring where that was an earlier step. Entry 0 does not exist.
void Batch::add_draft_rows(const Segment& trunk) {
  Segment segment = trunk;
  const int32_t skipped = trunk.position == 0 ? 1 : 0;
  segment.n_rows = trunk.n_rows - skipped;
  if (segment.n_rows == 0) return;
  segment.row = static_cast<int32_t>(draft_view_.n_rows);
  segment.position = trunk.position + skipped - 1;
  segment.n_pending = 0;
  for (int32_t i = 0; i < segment.n_rows; ++i) {
    const int64_t row = draft_view_.n_rows++;
    const int32_t trunk_row = trunk.row + skipped + i;
    host<int32_t>(at_.draft_ids)[row] = host<int32_t>(at_.ids)[trunk_row];
    host<int32_t>(at_.draft_positions)[row] = segment.position + i;
    host<int32_t>(at_.draft_segment_of)[row] = static_cast<int32_t>(draft_view_.n_segments);
    host<int32_t>(at_.draft_source)[row] = trunk_row > trunk.row ? trunk_row - 1 : kFromRing;
  }
  host<Segment>(at_.draft_segments)[draft_view_.n_segments++] = segment;
}

void Batch::build_draft(std::span<const DraftItem> items) {
  clear();
  first_logits_.assign(items.size(), 0);
  for (size_t i = 0; i < items.size(); ++i) {
    const DraftItem& item = items[i];
    Sequence& sequence = *item.sequence;
    const auto n = static_cast<int32_t>(item.ids.size());
    const int64_t past = std::max<int64_t>(1, sequence.draft_length());
    const bool trunk = item.hidden == HiddenFrom::Trunk;
    QUERN_CHECK(n > 0 && item.first >= 1 &&
                    (trunk ? item.first <= past && item.first + n <= sequence.length() + 1 &&
                                 item.first + kHiddenRing > sequence.length()
                           : n == 1 && item.first >= past && item.first < past + kMaxDrafts),
                fmt::format("draft entries {} + {} of a sequence of length {} whose draft block has {}",
                            item.first, n, sequence.length(), past));
    QUERN_CHECK(n_rows_ + n <= capacity_.rows && draft_view_.n_segments < capacity_.segments &&
                    n_logits_ < capacity_.logits,
                "a draft batch beyond the capacity");
    Segment segment;
    segment.row = static_cast<int32_t>(n_rows_);
    segment.n_rows = n;
    segment.slot = sequence.slot();
    segment.position = static_cast<int32_t>(item.first - 1);
    segment.page_table = add_pages(sequence, item.first + n);
    segment.role = Role::Decode;
    for (int32_t j = 0; j < n; ++j, ++n_rows_) {
      host<int32_t>(at_.draft_ids)[n_rows_] = item.ids[j];
      host<int32_t>(at_.draft_positions)[n_rows_] = segment.position + j;
      host<int32_t>(at_.draft_segment_of)[n_rows_] = static_cast<int32_t>(draft_view_.n_segments);
      host<int32_t>(at_.draft_source)[n_rows_] = trunk ? kFromRing : kFromDraft;
    }
    first_logits_[i] = n_logits_;
    host<int32_t>(at_.logit_rows)[n_logits_++] = static_cast<int32_t>(n_rows_ - 1);
    host<Segment>(at_.draft_segments)[draft_view_.n_segments++] = segment;
    if (trunk) sequence.set_draft_length(item.first + n);
  }
  draft_view_.n_rows = draft_view_.n_decode_rows = n_rows_;
  n_decode_rows_ = n_rows_;
  n_decode_logits_ = n_logits_;
}

void Batch::upload(Stream& s) {
  if (!on_device_.data()) return;
  s.upload(on_device_.data(), host_.data(),
           at_.page_tables + n_page_entries_ * static_cast<int64_t>(sizeof(int32_t)));
}

}  // namespace quern
