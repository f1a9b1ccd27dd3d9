#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "model/activations.h"
#include "model/weights.h"
#include "ops/embed.h"
#include "ops/linear.h"
#include "ops/ple.h"
#include "ops/rows.h"

namespace quern {
namespace {

// What the ops of a step take from the stream's scratch on CUDA, the largest op counted: experts' results, chunked delta
// rule, selection scores, sampling.
int64_t scratch_bytes(const Config& c, const BatchCapacity& b) {
  const int64_t rows = b.rows, chunks = rows / 64 + 2 * b.segments;
  const int64_t moe =
      rows * c.top_k * (4 * int64_t{c.d_model} + 4 * (int64_t{c.d_expert} + 64)) +
      rows * (8 * int64_t{c.d_model} + 4 * (int64_t{c.d_shared} + 64) + 4 * int64_t{c.n_experts});
  const int64_t delta = rows * 4 * (int64_t{c.delta.qkv_width()} + 2 * c.delta.n_value_heads) +
                        chunks * c.delta.n_value_heads * 4 * (2 * 64 * 128 + 64 * 64 + 128 * 128 + 64);
  const int64_t mixer = rows * (2 * int64_t{c.wide()} + 8 * int64_t{c.hc_rank}),
                ple = rows * 8 * int64_t{c.wide()};
  const int64_t products = rows * 4 * std::max({c.wide(), c.delta.value_width(), c.n_heads * c.d_head});
  const int64_t sampling = b.logits * 5 * c.vocab + (int64_t{16} << 20);
  const int64_t attention = int64_t{1} << 30;  // scores go by pieces of rows within this
  return std::max({moe, delta, mixer + ple + products, sampling, attention}) + (int64_t{256} << 20);
}

}  // namespace

CacheShape cache_shape_of(const Config& c, const DeltaNetShape& delta, const ModelOptions& options) {
  CacheShape shape;
  shape.n_delta_layers = c.n_delta_layers();
  shape.delta = delta;
  shape.n_sparse_layers = c.n_sparse_layers();
  shape.drafts = options.drafts;
  shape.n_kv = c.n_kv_heads;
  shape.d_head = c.d_head;
  shape.d_index = c.indexer.d_head;
  shape.wide = c.wide();
  shape.kv = options.kv;
  return shape;
}

Model::Model(std::shared_ptr<Checkpoint> checkpoint, const Config& config, const ModelOptions& options,
             Stream& stream)
    : checkpoint_(std::move(checkpoint)), config_(config), options_(options), stream_(stream) {
  options_.drafts = options.drafts && has_draft_block(*checkpoint_);
  weights_ = std::make_unique<ModelWeights>(bind_weights(*checkpoint_, config_, options_.drafts, stream_));
  prepare();
}

Model::Model(ModelWeights weights, const Config& config, const ModelOptions& options, Stream& stream)
    : config_(config), options_(options), stream_(stream) {
  options_.drafts = options.drafts && weights.draft.has_value();
  weights_ = std::make_unique<ModelWeights>(std::move(weights));
  prepare();
}

void Model::prepare() {
  const Config& c = config_;
  if (options_.kv != DType::F32 && options_.kv != DType::BF16 && options_.kv != DType::F16)
    throw Error(fmt::format("KV type: expected f32, bf16 or f16, found {}", name(options_.kv)));
  if (c.indexer.block_ratio != kBlockTokens)
    throw Error(
        fmt::format("indexer_compress_ratio: expected {}, found {}", kBlockTokens, c.indexer.block_ratio));

  delta_shape_.n_k = c.delta.n_key_heads;
  delta_shape_.n_v = c.delta.n_value_heads;
  delta_shape_.d_k = c.delta.d_key;
  delta_shape_.d_v = c.delta.d_value;
  delta_shape_.order = c.delta.tiled_value_heads ? HeadOrder::Tiled : HeadOrder::Grouped;
  delta_shape_.gate = c.delta.gate == OutputGate::Sigmoid ? GateType::Sigmoid : GateType::Silu;

  qsa_shape_.n_heads = c.n_heads;
  qsa_shape_.n_kv = c.n_kv_heads;
  qsa_shape_.d_head = c.d_head;
  qsa_shape_.d_rope = c.d_rope;
  qsa_shape_.index_heads = c.indexer.n_heads;
  qsa_shape_.d_index = c.indexer.d_head;
  qsa_shape_.budget_blocks = c.indexer.n_blocks();
  qsa_shape_.rope_theta = c.rope_theta;

  memory_ = std::make_unique<SequenceMemory>(stream_, cache_shape_of(c, delta_shape_, options_),
                                             options_.n_pages, options_.n_slots);
  activations_ = std::make_unique<Activations>(stream_.device(), c, options_.batch, options_.drafts);
  if (stream_.device().type == DeviceType::Cuda) stream_.reserve_scratch(scratch_bytes(c, options_.batch));
  if (options_.drafts) {
    const std::vector<float> ones(activations_->draft_ones.elements(), 1.0F);
    stream_.upload(activations_->draft_ones.data, ones.data(), activations_->draft_ones.bytes());
  }
}

Model::~Model() = default;

const CacheShape& Model::cache_shape() const { return memory_->state.shape(); }
bool Model::has_drafts() const { return options_.drafts; }
void Model::set_tap(Tap tap) { tap_ = std::move(tap); }
int64_t Model::weight_bytes() const { return weights_->bytes; }
const StepCost& Model::step_cost() const { return weights_->cost; }

void Model::tap(std::string_view what, int layer, Tensor value) {
  if (tap_ && layer >= 0) tap_(fmt::format("{}{}", what, layer), value);
}

void Model::tap_linear(std::string_view what, int layer, Tensor input, const Weight& w,
                       int64_t n_decode_rows) {
  if (!tap_ || layer < 0) return;
  const OwnedTensor y(stream_.device(), DType::F32, {input.rows(), w.n()});
  linear(stream_, y.tensor, input, w, n_decode_rows);
  tap(what, layer, y.tensor);
  stream_.synchronize();  // y goes
}

Tensor Model::forward(Batch& batch) {
  batch.upload(stream_);
  const BatchView& rows = batch.view();
  const bool decodes = rows.n_rows > 0 && rows.n_rows == rows.n_decode_rows;
  if (stream_.device().type != DeviceType::Cuda || tap_ || !decodes) return enqueue(batch);
  constexpr size_t kMaxGraphs = 256;
  // A graph reads the arrays of the batch it was captured with.
  const std::array<int64_t, 4> key{batch.serial(), rows.n_rows, rows.n_segments, batch.n_logits()};
  auto it = graphs_.find(key);
  if (it == graphs_.end()) {
    if (graphs_.size() >= kMaxGraphs) graphs_.clear();
    it = graphs_.emplace(key, Graph::capture(stream_, [&] { enqueue(batch); })).first;
  }
  it->second.launch(stream_);
  activations_->use_rows(rows.n_rows);
  activations_->use_logits(batch.n_logits());
  return activations_->logits;
}

Tensor Model::enqueue(Batch& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const ModelWeights& w = *weights_;
  const BatchView& rows = batch.view();
  a.use_rows(rows.n_rows);
  a.use_logits(batch.n_logits());

  embed(s, a.x, rows, w.embed, config_.streams);  // [T, S·H]
  int n_attention = 0;
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    if (layer == config_.ple.layer) ple(layer, rows);
    if (w.layers[layer].kind == LayerKind::DeltaNet) {
      delta_layer(layer, rows);
    } else {
      attention_layer(w.attention[n_attention], memory_->kv.layer(n_attention), a.x, rows, layer);
      ++n_attention;
    }
    moe_layer(w.moe[layer], a.x, rows, layer);
    tap("layer", layer, a.x);
  }

  if (batch.n_logits() > 0) {
    lm_head(w.mix, a.x, batch);  // [L, V]
    if (tap_) tap_("final", a.final_h);
  }
  if (options_.drafts) draft_prefill(batch);
  return a.logits;
}

void Model::ple(int layer, const BatchView& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  const PleLayer& w = weights_->ple;
  ple_rows(s, a.ngram, batch, w.hash, w.table);    // [T, d_embed]
  const Product in[] = {{a.ple_key, &w.key},       // [T, S·H]
                        {a.ple_value, &w.value}};  // [T, H]
  linear(s, in, a.ngram, batch.n_decode_rows);
  tap("ngram", layer, a.ngram);
  tap("ple.before", layer, a.x);
  ple_add(s, a.x, a.ple_key, a.ple_value, w.ple, memory_->state.ple_ring(), batch, config_.streams,
          config_.norm_eps);
  tap("ple.after", layer, a.x);
}

// The final mixer of the trunk or of the draft block, and the head they share, on the rows that want logits.
void Model::lm_head(const MixerWeights& mix, Tensor x, const Batch& batch) {
  Stream& s = stream_;
  Activations& a = *activations_;
  gather_rows(s, a.logit_x, x, batch.logit_rows());  // [L, S·H]
  hc_mix(s, a.final_h, {}, a.logit_x, mix, config_.streams, config_.norm_eps,
         batch.n_decode_logits());                                             // [L, H]
  linear(s, a.logits, a.final_h, weights_->lm_head, batch.n_decode_logits());  // [L, V]
}

}  // namespace quern
