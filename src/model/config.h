// What shapes the model: one validated struct, from config.json or from GGUF keys (MODEL.md §1.2, §3.1).
//
// Accepted spellings: a nested `text_config` or a flat file; `layer_types` of "full_attention",
// "qwen_sparse_attention", "deepseek_sparse_attention" and "hybrid_indexed" all mean sparse attention; rope
// values flat or inside `rope_parameters`; eos as a number or a list. A value that is unknown, unsupported or
// contradicts another is an Error naming the key and the value; so is any rope_type but "default" (YaRN).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/quantization.h"

namespace quern {

enum class LayerKind : uint8_t { DeltaNet, SparseAttention };
enum class OutputGate : uint8_t { Sigmoid, Silu };

struct IndexerConfig {
  int n_heads = 0;
  int d_head = 0;
  int budget = 0;       // tokens selected through blocks
  int block_ratio = 0;  // tokens in one block
  int n_blocks() const { return budget / block_ratio; }
};

struct DeltaNetConfig {
  int n_key_heads = 0;
  int n_value_heads = 0;
  int d_key = 0;
  int d_value = 0;
  int conv = 0;  // taps
  OutputGate gate = OutputGate::Silu;
  // The order of value heads in the file's weights. Hugging Face groups them by key head: value head j reads
  // key head j div (n_value_heads / n_key_heads). GGUF tiles them: j mod n_key_heads.
  bool tiled_value_heads = false;

  int key_head(int value_head) const {
    return tiled_value_heads ? value_head % n_key_heads : value_head / (n_value_heads / n_key_heads);
  }
  int key_width() const { return n_key_heads * d_key; }
  int value_width() const { return n_value_heads * d_value; }
  int qkv_width() const { return 2 * key_width() + value_width(); }
};

struct PleConfig {
  int layer = 0;  // 0-based: the table is added to this layer's input
  int ngram = 0;  // longest n-gram, 3: heads exist for 2 and 3
  int heads_per_ngram = 0;
  int d_row = 0;  // width of one table row
  int conv = 0;   // taps
  int dilation = 0;
  bool fp8 = false;      // the config says that the table is stored so
  int32_t eos_id = 0;    // resets the n-gram context; not the chat's end
  int32_t image_id = 0;  // what an image position hashes; eos_id where the file has none
  // The recipe of the hash constants (model/ngram_hash.h); GGUF files have only the constants.
  int64_t vocab_base = 0;
  int64_t row_multiple = 128;
  int64_t seed = 1234;

  int n_heads() const { return (ngram - 1) * heads_per_ngram; }
  int d_embed() const { return n_heads() * d_row; }
};

struct VisionConfig {
  int n_layers = 0;
  int d_model = 0;
  int d_ff = 0;
  int n_heads = 0;
  int d_out = 0;
  int n_positions = 0;  // learned table rows, a square
  int patch = 0;
  int merge = 0;
  int temporal_patch = 0;
  int in_channels = 0;
};

struct Config {
  int64_t vocab = 0;
  int d_model = 0;
  int n_layers = 0;
  std::vector<LayerKind> layers;  // n_layers
  int streams = 0;                // hc_count
  int hc_rank = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int d_head = 0;
  int d_rope = 0;  // rotary dims of a head
  double rope_theta = 0;
  std::vector<int> mrope_section;  // three rotary pair counts
  IndexerConfig indexer;
  DeltaNetConfig delta;
  int n_experts = 0;
  int top_k = 0;
  int d_expert = 0;
  int d_shared = 0;
  bool norm_topk_prob = true;
  PleConfig ple;
  float norm_eps = 0;
  int64_t max_positions = 0;
  int mtp_layers = 0;  // as the config says; the files may lack them
  bool tied_embeddings = false;
  QuantizationRules quantization;  // of folders; GGUF types are the tensors' own business
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // of the text config; stop ids of chats: checkpoint/generation_config.h
  std::optional<int32_t> image_token_id, video_token_id, vision_start_id, vision_end_id;
  std::optional<VisionConfig> vision;

  int wide() const { return streams * d_model; }
  int n_sparse_layers() const;
  int n_delta_layers() const { return n_layers - n_sparse_layers(); }
};

// Throws Error naming the file, the key and the value.
Config read_config(const Checkpoint& checkpoint);
Config parse_config(const Json& config_json, const std::string& file);

}  // namespace quern
