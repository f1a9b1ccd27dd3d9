// Not an op: what a step's rows are, as ops see it. The model's Batch fills it once a step; on CUDA the
// arrays lie on the device and the counts here are the bucket's, so that a captured graph reads lengths from
// memory.
//
// Rows are grouped into segments: consecutive positions of one sequence. Decode segments come first, then
// prefill segments: rows [0, n_decode_rows) take the decode path and the others the prefill path (DESIGN.md,
// Roles).
#pragma once

#include <cstdint>

namespace quern {

enum class Role : int32_t { Decode = 0, Prefill = 1, Pad = 2 };  // a padding row is marked, never inferred

inline constexpr int kPageTokens = 64;  // tokens of a page
inline constexpr int kBlockTokens = 4;  // tokens of an index block
inline constexpr int kPageBlocks = kPageTokens / kBlockTokens;
inline constexpr int kMaxDrafts = 8;  // a decode segment has 1 to kMaxDrafts + 1 rows
// Rings of recent inputs, indexed by position mod ring size, long enough for the window and for drafts to be
// dropped.
inline constexpr int kConvRing = 16;  // delta net conv inputs and raw index keys: ≥ 3 + kMaxDrafts + 1
inline constexpr int kPleRing = 32;   // PLE conv inputs: ≥ 9 + kMaxDrafts + 1

struct Segment {
  int32_t row = 0;  // its first row
  int32_t n_rows = 0;
  int32_t slot = 0;        // of the recurrent state
  int32_t position = 0;    // of its first row
  int32_t n_pending = 0;   // rows of the slot's pending buffer that were accepted and are not yet in M
  int32_t page_table = 0;  // offset of its page list in page_tables: entry i holds positions 64i … 64i+63
  Role role = Role::Prefill;
};

struct BatchView {
  int64_t n_rows = 0;
  int64_t n_decode_rows = 0;
  int64_t n_segments = 0;
  int64_t max_tokens = 0;        // no row's position reaches it; on CUDA sizes grids and scratch
  const int32_t* ids = nullptr;  // [n_rows]
  const int32_t* windows =
      nullptr;  // [n_rows, 3]: the row's id and the two before it, -1 where there is none
  const int32_t* positions = nullptr;   // [n_rows]
  const int32_t* segment_of = nullptr;  // [n_rows]
  const Segment* segments = nullptr;    // [n_segments]
  const int32_t* page_tables = nullptr;
};

}  // namespace quern
