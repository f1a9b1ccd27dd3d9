#include "engine/token_chooser.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

#include "base/check.h"

namespace quern {
namespace {

// The id that the thinking budget dictates at this row, or -1.
int32_t forced_after(const ChoiceRow& row) {
  const Reply& reply = *row.reply;
  const int64_t at = reply.reply_size() + static_cast<int64_t>(row.after.size());
  if (reply.request().thinking_budget < 0 || at < reply.request().thinking_budget) return -1;
  std::vector<int32_t> said(reply.ids.begin() + reply.prompt_size(), reply.ids.end());
  said.insert(said.end(), row.after.begin(), row.after.end());
  return forced_id(reply.request(), said, at);
}

}  // namespace

bool has_penalties(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

void count_id(std::vector<int32_t>& seen_ids, std::vector<int32_t>& seen_counts, int32_t id) {
  const auto it = std::lower_bound(seen_ids.begin(), seen_ids.end(), id);
  const auto at = it - seen_ids.begin();
  if (it != seen_ids.end() && *it == id) {
    ++seen_counts[at];
    return;
  }
  seen_ids.insert(it, id);
  seen_counts.insert(seen_counts.begin() + at, 1);
}

void start_counts(Reply& reply) {
  const SamplingParams& p = reply.request().sampling;
  if (p.repetition_penalty == 1) return;  // the other penalties look at the reply only
  reply.seen_ids = reply.request().prompt;
  std::sort(reply.seen_ids.begin(), reply.seen_ids.end());
  reply.seen_ids.erase(std::unique(reply.seen_ids.begin(), reply.seen_ids.end()), reply.seen_ids.end());
  reply.seen_counts.assign(reply.seen_ids.size(), 0);
}

TokenChooser::TokenChooser(Stream& stream, int64_t vocab, int64_t max_rows)
    : stream_(stream), vocab_(vocab), ids_(stream.device(), DType::I32, {max_rows, 1}) {}

// Rows point into staged_ by offset + 1 until it is complete; then the offsets become addresses.
template <typename T>
const T* TokenChooser::stage(std::span<const T> values) {
  if (values.empty()) return nullptr;
  const size_t offset = (staged_.size() + 15) / 16 * 16;
  staged_.resize(offset + values.size_bytes());
  std::memcpy(staged_.data() + offset, values.data(), values.size_bytes());
  return reinterpret_cast<const T*>(offset + 1);
}

void TokenChooser::fill(SamplingRow& row, const ChoiceRow& choice) {
  const Reply& reply = *choice.reply;
  const SamplingParams& p = reply.request().sampling;
  row = {};
  row.temperature = p.temperature;
  row.top_k = p.top_k;
  row.top_p = p.top_p;
  row.min_p = p.min_p;
  row.repetition = p.repetition_penalty;
  row.presence = p.presence_penalty;
  row.frequency = p.frequency_penalty;
  row.seed = reply.seed();
  row.position = static_cast<int64_t>(reply.ids.size() + choice.after.size());
  if (has_penalties(p)) {
    if (choice.after.empty()) {
      row.seen_ids = stage(std::span<const int32_t>(reply.seen_ids));
      row.seen_counts = stage(std::span<const int32_t>(reply.seen_counts));
      row.n_seen = static_cast<int32_t>(reply.seen_ids.size());
    } else {
      std::vector<int32_t> ids = reply.seen_ids, counts = reply.seen_counts;
      for (const int32_t id : choice.after) count_id(ids, counts, id);
      row.seen_ids = stage(std::span<const int32_t>(ids));
      row.seen_counts = stage(std::span<const int32_t>(counts));
      row.n_seen = static_cast<int32_t>(ids.size());
    }
  }
  GrammarPlace place = reply.grammar;
  // A draft that the grammar refuses is not chosen, and what follows it does not matter; but ids that the thinking
  // budget dictates stand whatever the grammar says.
  bool allowed = true;
  for (size_t i = 0; i < choice.after.size() && allowed; ++i)
    allowed = place.take(choice.after[i]) ||
              forced_after({choice.reply, choice.after.first(i), 0}) == choice.after[i];
  if (allowed && place.active() && forced_after(choice) < 0) {
    mask_.assign(static_cast<size_t>((vocab_ + 31) / 32), 0);
    place.fill_mask(mask_);
    row.mask = stage(std::span<const uint32_t>(mask_));
  }
  const bool may_not_stop = place.awaited() && !reply.request().stop_ids.empty();
  if (!p.logit_bias.empty() || may_not_stop) {
    const auto& stops = reply.request().stop_ids;
    std::map<int32_t, float> by_id;  // a request lists ids in any order; rows hold them sorted
    for (const auto& [id, value] : p.logit_bias) by_id[id] += value;
    if (may_not_stop)
      for (const int32_t stop : stops) by_id[stop] = -std::numeric_limits<float>::infinity();
    std::vector<int32_t> ids;
    std::vector<float> bias;
    for (const auto& [id, value] : by_id) {
      ids.push_back(id);
      bias.push_back(value);
    }
    row.bias_ids = stage(std::span<const int32_t>(ids));
    row.bias = stage(std::span<const float>(bias));
    row.n_bias = static_cast<int32_t>(ids.size());
  }
}

void TokenChooser::choose(Tensor logits, std::span<const ChoiceRow> rows, std::vector<int32_t>& out) {
  if (rows.empty()) return;
  const auto n = static_cast<int64_t>(rows.size());
  QUERN_CHECK(n <= ids_.tensor.shape[0], "more rows than the chooser was made for");
  staged_.clear();
  rows_.resize(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) fill(rows_[i], rows[i]);

  // On a device all of it lies in one buffer there, the rows themselves last.
  const std::byte* base = staged_.data();
  const size_t rows_at = (staged_.size() + 15) / 16 * 16, rows_bytes = rows.size() * sizeof(SamplingRow);
  const bool on_device = stream_.device().type != DeviceType::Cpu;
  if (on_device) {
    staged_.resize(rows_at + rows_bytes);
    if (on_device_.size() < static_cast<int64_t>(staged_.size())) {
      stream_.synchronize();
      on_device_ = Buffer(stream_.device(), static_cast<int64_t>(staged_.size()) * 2);
    }
    base = on_device_.data();
  }
  const auto place = [base]<typename T>(const T*& p) {
    if (p) p = reinterpret_cast<const T*>(base + (reinterpret_cast<size_t>(p) - 1));
  };
  for (SamplingRow& row : rows_) {
    place(row.seen_ids);
    place(row.seen_counts);
    place(row.bias_ids);
    place(row.bias);
    place(row.mask);
  }
  const SamplingRow* sampling = rows_.data();
  if (on_device) {
    std::memcpy(staged_.data() + rows_at, rows_.data(), rows_bytes);
    stream_.upload(on_device_.data(), staged_.data(), static_cast<int64_t>(staged_.size()));
    sampling = reinterpret_cast<const SamplingRow*>(base + rows_at);
  }

  // Runs of consecutive rows of logits, so that replies forked from one prompt can share a row.
  for (int64_t i = 0; i < n;) {
    int64_t end = i + 1;
    while (end < n && rows[end].logits_row == rows[end - 1].logits_row + 1) ++end;
    sample(stream_, ids_.tensor.slice_rows(i, end),
           logits.slice_rows(rows[i].logits_row, rows[i].logits_row + end - i), sampling + i, end - i);
    i = end;
  }
  const size_t first = out.size();
  out.resize(first + rows.size());
  stream_.download(out.data() + first, ids_.tensor.data, n * static_cast<int64_t>(sizeof(int32_t)));
  stream_.synchronize();

  for (size_t i = 0; i < rows.size(); ++i) {
    if (out[first + i] < 0) continue;
    if (const int32_t forced = forced_after(rows[i]); forced >= 0) out[first + i] = forced;
  }
}

TokenLogprob TokenChooser::logprob(Tensor logits, int64_t row, int32_t id, int32_t k) {
  logits_.resize(static_cast<size_t>(vocab_));
  stream_.download(logits_.data(), logits.row<float>(row), vocab_ * static_cast<int64_t>(sizeof(float)));
  stream_.synchronize();
  const float top = *std::max_element(logits_.begin(), logits_.end());
  double sum = 0;
  for (const float l : logits_) sum += std::exp(static_cast<double>(l - top));
  const double normaliser = static_cast<double>(top) + std::log(sum);
  const auto value = [&](int32_t i) {
    return static_cast<float>(static_cast<double>(logits_[i]) - normaliser);
  };

  TokenLogprob result;
  result.logprob = value(id);
  std::vector<int32_t> order(logits_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const int64_t most = std::min<int64_t>(k, vocab_);
  std::partial_sort(order.begin(), order.begin() + most, order.end(), [&](int32_t a, int32_t b) {
    return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
  });
  for (int64_t i = 0; i < most; ++i) result.top.emplace_back(order[i], value(order[i]));
  return result;
}

}  // namespace quern
