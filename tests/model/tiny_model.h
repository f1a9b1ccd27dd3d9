// The bundled model with room for a test's sequences, and what the equivalence tests compare: logits of every row and a
// sequence's whole state, byte for byte.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "model/batch.h"
#include "model/model.h"
#include "ops/rows.h"

namespace quern::test {

using Ids = std::vector<int32_t>;
using State = std::vector<std::pair<std::string, std::vector<std::byte>>>;  // named parts
using Logits = std::vector<std::vector<float>>;                             // a row each

struct TinyModel {
  ThreadPool pool;
  Stream stream;
  std::unique_ptr<Model> model;
  std::unique_ptr<Batch> batch;

  explicit TinyModel(int threads = 2, DType kv = DType::BF16, bool drafts = true,
                     const std::string& path = QUERN_SOURCE_DIR "/models/quern-tiny")
      : pool(threads), stream(pool) {
    std::shared_ptr<Checkpoint> checkpoint = Checkpoint::open(path);
    ModelOptions options;
    options.kv = kv;
    options.drafts = drafts;
    options.n_pages = 64;
    options.n_slots = 8;
    options.batch = {600, 8, 600, 1024};
    model = std::make_unique<Model>(checkpoint, read_config(*checkpoint), options, stream);
    batch = std::make_unique<Batch>(stream.device(), options.batch);
  }

  std::unique_ptr<Sequence> sequence() { return Sequence::create(model->memory()); }

  // Runs the items, commits commits[i] rows of each; logits per item, of all its rows.
  std::vector<Logits> step(std::vector<BatchItem> items, std::vector<int32_t> commits = {}) {
    for (BatchItem& item : items) {
      item.n_logits = kAllRows;
      EXPECT_TRUE(
          item.sequence->reserve(item.sequence->length() + static_cast<int64_t>(item.ids.size()) + 1));
    }
    batch->build(items);
    const Tensor logits = model->forward(*batch);
    stream.synchronize();
    std::vector<Logits> out(items.size());
    for (size_t i = 0; i < items.size(); ++i) {
      const auto n = static_cast<int32_t>(items[i].ids.size());
      for (int32_t j = 0; j < n; ++j) {
        const float* row = logits.row<float>(batch->first_logits(i) + j);
        out[i].emplace_back(row, row + logits.cols());
      }
      items[i].sequence->commit(commits.empty() ? n : commits[i]);
    }
    return out;
  }

  Logits prefill(Sequence& s, std::span<const int32_t> ids) {
    s.append(ids);
    return step({{&s, ids, Role::Prefill, 0}})[0];
  }
  // Appends the ids in pieces of the given lengths (the last one repeats).
  Logits prefill_in(Sequence& s, std::span<const int32_t> ids, const std::vector<int>& pieces) {
    Logits all;
    for (size_t at = 0, i = 0; at < ids.size(); ++i) {
      const size_t n = std::min<size_t>(pieces[std::min(i, pieces.size() - 1)], ids.size() - at);
      for (auto& row : prefill(s, ids.subspan(at, n))) all.push_back(std::move(row));
      at += n;
    }
    return all;
  }
  // One id, already known, as a decode row; then the draft block sees it when the next id is known.
  Logits decode(Sequence& s, int32_t id) {
    s.append(id);
    return step({{&s, std::span(&id, 1), Role::Decode, 0}})[0];
  }
  // The draft block's entries [draft_length, ids known); logits of the last.
  std::vector<float> draft(Sequence& s) {
    const int64_t first = std::max<int64_t>(1, s.draft_length());
    const std::vector<int32_t> ids(s.ids().begin() + first, s.ids().end());
    return draft(s, first, ids, HiddenFrom::Trunk);
  }
  std::vector<float> draft(Sequence& s, int64_t first, std::span<const int32_t> ids, HiddenFrom hidden) {
    EXPECT_TRUE(s.reserve(first + static_cast<int64_t>(ids.size())));
    const DraftItem item{.sequence = &s, .first = first, .ids = ids, .hidden = hidden};
    batch->build_draft({&item, 1});
    const Tensor logits = model->draft(*batch);
    stream.synchronize();
    return {logits.row<float>(0), logits.row<float>(0) + logits.cols()};
  }

  // What the sequence's future depends on, and nothing else. Pending rows go into M first, as in a fork.
  State state(Sequence& s) {
    const std::unique_ptr<Sequence> copy = s.fork();
    EXPECT_NE(copy, nullptr);
    State out;
    const auto part = [&](const std::string& name, int i = 0) {
      out.push_back({name + std::to_string(i), {}});
    };
    const auto add = [&](const std::byte* bytes, int64_t n) {
      out.back().second.insert(out.back().second.end(), bytes, bytes + n);
    };
    const auto ring = [&](const Tensor& t, int64_t size, int64_t end, int64_t n) {
      for (int64_t p = std::max<int64_t>(0, end - n); p < end; ++p)
        add((t.item(copy->slot()).row<std::byte>(0)) + (p % size) * t.cols() * 4, t.cols() * 4);
    };
    SequenceMemory& m = model->memory();
    const CacheShape& shape = model->cache_shape();
    const int64_t n = s.length(), n_draft = std::min(s.draft_length(), n);
    for (int i = 0; i < shape.n_delta_layers; ++i) {
      part("M", i);
      const Tensor M = m.state.delta(i).M.item(copy->slot());
      add(M.data, M.bytes());
      part("conv", i);
      ring(m.state.delta(i).ring, kConvRing, n, kConvHistory);
    }
    part("ple");
    ring(m.state.ple_ring(), kPleRing, n, kPleHistory);
    part("hidden");
    if (shape.drafts) ring(m.state.hidden_ring(), kHiddenRing, n, 1);
    for (int i = 0; i < shape.n_attention_layers(); ++i) {
      const QsaCache& layer = m.kv.layer(i);
      const bool is_draft = shape.drafts && i == shape.draft_layer();
      const int64_t end = is_draft ? std::max<int64_t>(0, n_draft - 1) : n;  // positions with an entry
      part("raw keys of attention", i);
      ring(layer.ring, kConvRing, end, end % kBlockTokens);
      part("k, v of attention", i);
      for (int64_t p = 0; p < end; ++p) {
        const int64_t at = p + layer.shift, page = copy->pages()[at / kPageTokens];
        for (const Tensor& t : {layer.k, layer.v}) {
          const int64_t bytes = row_bytes(t.dtype, t.cols());
          for (int64_t head = 0; head < shape.n_kv; ++head)
            add(t.data + ((page * shape.n_kv + head) * kPageTokens + at % kPageTokens) * bytes, bytes);
        }
      }
      part("pooled of attention", i);
      for (int64_t b = 0; b < end / kBlockTokens; ++b) {
        const int64_t at = b + layer.shift, page = copy->pages()[at / kPageBlocks];
        add(layer.pooled.data + (page * kPageBlocks + at % kPageBlocks) * shape.d_index * 4,
            shape.d_index * 4);
      }
    }
    return out;
  }
};

// Ids of the tokenizer's text, with a document end here and there.
inline Ids random_ids(std::mt19937& rng, int64_t n) {
  Ids ids(n);
  for (int32_t& id : ids) id = rng() % 40 == 0 ? 4000 : static_cast<int32_t>(rng() % 4000);
  return ids;
}

// The first row and column at which the bits differ, as text; empty when they agree.
inline std::string difference(const State& a, const State& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    if (a[i] != b[i]) return a[i].first + " against " + b[i].first;
  return a.size() == b.size() ? "" : "parts";
}
inline std::string difference(const Logits& a, const Logits& b) {
  if (a.size() != b.size()) return "rows: " + std::to_string(a.size()) + " and " + std::to_string(b.size());
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t j = 0; j < a[i].size(); ++j)
      if (std::memcmp(&a[i][j], &b[i][j], 4) != 0)
        return "row " + std::to_string(i) + ", column " + std::to_string(j) + ": " + std::to_string(a[i][j]) +
               " and " + std::to_string(b[i][j]);
  return {};
}

inline Logits rows(const Logits& all, size_t begin, size_t end) {
  return {all.begin() + static_cast<int64_t>(begin), all.begin() + static_cast<int64_t>(end)};
}

}  // namespace quern::test
