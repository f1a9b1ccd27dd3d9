// A checkpoint as another one: Hugging Face ⇄ GGUF, in any of the formats, streamed.
//
// Recipe of a type T (`--type`):
//   F32, F16, BF16    every matrix in T
//   a GGUF block type routed experts in T; all other matrices, embedding and head in Q8_0 (the QSA o_proj never
//                     less); the n-gram table in Q8_0 for T = Q8_0, else in IQ4_NL
//   kept              norms, convolutions, decays, biases in F32; router, injections, the delta net's a and b and
//                     the indexer in BF16 (F32 where the source is wider, the source's blocks where it has some)
// What a source stores as the target does is copied: blocks of one type, NVFP4 with its factors between the containers,
// FP8 with its scales.
// NVFP4 in GGUF comes with a ….scale tensor: one factor a matrix or an expert.
// In a Hugging Face folder, where what is not named stays BF16:
//   FP8               routed experts, the draft block's too, one by one with a scale per 128 × 128 block; the n-gram
//                     table with one scale: the official FP8 release's layout
//   NVFP4             the trunk's routed experts as ModelOpt writes them; the n-gram table in FP8
// A row that is no whole number of blocks takes the next type whose blocks fit (fitting_type). The draft block
// follows the same recipe. Overrides by pattern come last.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "checkpoint/gguf_writer.h"
#include "model/config.h"
#include "model/tensor_source.h"
#include "ops/ple.h"

namespace quern {

struct Recipe {
  DType type = DType::BF16;
  // (pattern, type): a pattern with * matches the whole name as the output spells it; the last match counts. Vectors
  // (norms, decays, biases, convolutions) take F32, F16 and BF16 only. One that no tensor takes is an Error. The
  // experts of a layer in a Hugging Face folder go by …mlp.experts.gate_up_proj and …mlp.experts.down_proj.
  std::vector<std::pair<std::string, DType>> overrides;
};

// "q4_k" → Q4_K. Throws Error that lists the types.
DType parse_type(std::string_view text);
// `type` where rows of k values are whole blocks of it, else the nearest that fits: 256-blocks fall back to
// 32-blocks of about their size, and BF16 always fits.
DType fitting_type(DType type, int64_t k);
// Throws Error naming a type that the container cannot hold.
void check_recipe(const Recipe& recipe, bool gguf);

// The tensors of a GGUF file. `sources` outlive the export.
std::vector<ExportTensor> gguf_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                       const Recipe& recipe);
// Its architecture keys. `has_draft`: whether the tensors hold a draft block.
void write_gguf_config(GgufKeys& keys, const Config& config, const NgramHash& hash, bool has_draft,
                       DType type);

// The tensors of a Hugging Face folder, in the released layouts; the table in `table_parts`. `sources` outlive the
// export. Writing FP8 reads the whole table once, to find its scale, unless the source has one.
std::vector<ExportTensor> hugging_face_tensors(const std::vector<SourceTensor>& sources, const Config& config,
                                               const NgramHash& hash, const Recipe& recipe,
                                               int64_t table_parts, ThreadPool& pool);
// The config.json of a folder with these tensors, and its quantization_config alone; null where nothing is quantised.
Json hugging_face_config(const Config& config, const std::vector<ExportTensor>& tensors, int64_t table_parts);
Json hugging_face_quantization(const std::vector<ExportTensor>& tensors);

}  // namespace quern
