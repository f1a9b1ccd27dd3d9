// Qwen3.8-Flash-Next (MODEL.md): load a checkpoint, run steps.
//
//   Model model(checkpoint, config, options, stream);
//   auto seq = Sequence::create(model.memory());
//   seq->append(ids);  seq->reserve(ids.size());
//   batch.build({{{seq.get(), ids, Role::Prefill, 1}}});
//   Tensor logits = model.forward(batch);                       // [n_logits, V] f32
//   seq->commit(n);
//
// A row's result depends on its sequence's past and its own role, never on its neighbours (DESIGN.md,
// Exactness). forward and draft enqueue on the stream and return; the logits they return are overwritten by
// the next call.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "cache/sequence.h"
#include "checkpoint/checkpoint.h"
#include "model/batch.h"
#include "model/config.h"
#include "model/step_cost.h"
#include "ops/delta_net.h"
#include "ops/hyper_connection.h"
#include "ops/sparse_attention.h"
#include "tensor/graph.h"
#include "tensor/stream.h"

namespace quern {

struct ModelOptions {
  DType kv = DType::BF16;  // F32, BF16 or F16
  bool drafts = true;      // load the draft (MTP) block where the checkpoint has one
  int32_t n_pages = 0;     // pages of 64 tokens, over all sequences
  int32_t n_slots = 1;     // sequences that have state at once
  BatchCapacity batch;     // largest step
};

// What a sequence carries with these options.
CacheShape cache_shape_of(const Config& config, const DeltaNetShape& delta, const ModelOptions& options);

struct Activations;
struct AttentionLayer;
struct ModelWeights;
struct MoeLayer;

// Receives a named intermediate of a step, in device memory that is valid during the call. A row per batch row:
// `layerI` (the wide residual after layer I), `hcmixI` (a block's input), `gdnI`, `attnI`, `moeI`, `pleI` (blocks' outputs),
// `ngramI` (table rows), `selectI` with `select.countsI` and the index queries `indexI` (ops/sparse_attention.h). A row
// per row of logits: `final`. A row per row of draft_view(): `mtp.logits`.
using Tap = std::function<void(std::string_view name, Tensor value)>;

class Model {
 public:
  // Throws Error naming the tensor, what was expected and what was found.
  // Keeps the checkpoint: on the CPU matrices stay in its mapped files.
  Model(std::shared_ptr<Checkpoint> checkpoint, const Config& config, const ModelOptions& options,
        Stream& stream);
  // With weights made by the caller (model/synthetic_weights.h) in place of a checkpoint's.
  Model(ModelWeights weights, const Config& config, const ModelOptions& options, Stream& stream);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Config& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const CacheShape& cache_shape() const;
  bool has_drafts() const;
  SequenceMemory& memory() { return *memory_; }
  Stream& stream() { return stream_; }
  Device device() const { return stream_.device(); }
  const Checkpoint* checkpoint() const { return checkpoint_.get(); }  // null: weights made by the caller

  // Runs the batch; logits [n_logits, V] f32 of the rows that want them, in order. Where the model drafts,
  // prefill rows fill the draft block's caches as well.
  // On CUDA a step of decode rows is captured once for each number of rows, segments and logits, and replayed.
  Tensor forward(Batch& batch);
  // The same without the upload and without a graph of its own: for a caller that captures more than the model, over a
  // batch whose arrays the device itself moves on (ops/advance.h).
  Tensor enqueue(Batch& batch);
  // Runs the draft block over a batch of build_draft: logits [items, V] f32 of each item's next id after its
  // last one. The block's own last wide row of each sequence becomes the hidden row of a chained pass.
  Tensor draft(Batch& batch);

  // For comparisons with reference files; an empty tap costs nothing. On CUDA the receiver synchronises and downloads.
  void set_tap(Tap tap);

  int64_t weight_bytes() const;
  const StepCost& step_cost() const;

 private:
  void prepare();  // shapes, caches, activations, scratch: everything but the weights
  void ple(int layer, const BatchView& batch);
  void delta_layer(int layer, const BatchView& batch);
  // An attention or expert block of the trunk or, with layer = -1, of the draft block.
  void attention_layer(const AttentionLayer& w, const QsaCache& cache, Tensor x, const BatchView& batch,
                       int layer);
  void moe_layer(const MoeLayer& w, Tensor x, const BatchView& batch, int layer);
  void draft_block(const BatchView& batch);  // draft_hidden → draft_x
  void draft_prefill(const Batch& batch);
  void lm_head(const MixerWeights& mix, Tensor x, const Batch& batch);

  // Taps of a block whose output goes straight into the residual compute that output a second time.
  void tap(std::string_view what, int layer, Tensor value);
  void tap_linear(std::string_view what, int layer, Tensor input, const Weight& w, int64_t n_decode_rows);

  std::shared_ptr<Checkpoint> checkpoint_;
  Config config_;
  ModelOptions options_;
  Stream& stream_;
  DeltaNetShape delta_shape_;
  QsaShape qsa_shape_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<SequenceMemory> memory_;
  std::unique_ptr<Activations> activations_;
  std::map<std::array<int64_t, 4>, Graph> graphs_;  // by batch, and rows, segments, logits of a decode step
  Tap tap_;
};

}  // namespace quern
