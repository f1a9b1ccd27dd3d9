// Random checkpoints with real shapes: what a benchmark or a test runs where the released files are too large.
//
// Values keep activations sane and exercise every term, as the reference's maker does it: norms off their
// neutral value, convolutions off zero, decays spread over their range. A value depends on (seed, tensor, row,
// column) alone, so the same options give the same bytes on any number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/tensor_export.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "text/tokenizer_spec.h"

namespace quern {

struct SyntheticOptions {
  bool full = false;       // the released widths; else the tiny ones
  int layers = 4;          // every fourth is sparse attention
  int experts = 0;         // 0: the geometry's own number
  int64_t ngram_base = 0;  // 0: 20000 (full) or 500 (tiny); the release has 20 000 000
  bool mtp = false;        // with a draft block
  uint64_t seed = 0;
};

// The config.json of such a checkpoint.
Json synthetic_config(const SyntheticOptions& options);
// Its tensors, under logical names, all BF16 but the int64 constants; the n-gram table in `table_parts` shards.
std::vector<ExportTensor> synthetic_tensors(const Config& config, uint64_t seed, int64_t table_parts);
// The same values as a source for `gguf_tensors` (model/convert.h), experts apart.
std::vector<SourceTensor> synthetic_sources(const Config& config, uint64_t seed);
// tokenizer.json and tokenizer_config.json of a byte-level vocabulary: 256 bytes, then strings of three letters that no
// text becomes (there are no merges) but that every id of a random model decodes to, and the control tokens of the
// released model from the config's end-of-text id on.
TokenizerSpec synthetic_tokenizer(const Config& config);
std::string synthetic_chat_template();
Json synthetic_tokenizer_config(const Config& config);
Json synthetic_generation_config(const Config& config);

}  // namespace quern
