// quern eval --ids, --text and --against: how well a model predicts a text, and how far two models are apart on it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/mapped_file.h"
#include "eval.h"
#include "model/batch.h"
#include "text/tokenizer.h"

namespace quern {
namespace {

using IdRows = std::vector<std::vector<int32_t>>;

// What --against scores where nothing is given: short enough for any machine, of several kinds of text.
constexpr std::string_view kPage =
    R"(The harbour wakes before the town does. Boats that left at midnight come back with the first light, and the
men on the quay sort what they brought by size: small fish to the left, large ones to the right, and everything that
nobody will buy into a bucket for the cats. By seven the fish are on ice, and by eight they are on the road.

It was not always so. A hundred years ago the railway ended four miles inland, and a catch had to be carried there on
carts before it could be sold. When the line reached the sea, the price of a box of herring fell by half within one
summer, and the number of boats doubled in the next. The old people said that the fish would not last. They were wrong
about the fish, but they were right about the quiet.

To make bread for four people, mix 500 grams of flour, 10 grams of salt, 7 grams of dry yeast and 330 grams of warm
water. Knead it for ten minutes, let it rise for an hour, shape it, and bake it at 230 degrees for 35 minutes. If the
crust sounds hollow, it is done.

The capital of France is Paris. The capital of Norway is Oslo, and the capital of Japan is Tokyo. Water boils at 100
degrees at sea level and at about 90 degrees on a mountain of 3000 metres. 7 + 5 = 12, 9 * 8 = 72, and 1000 / 8 = 125.

def mean(values):
    total = 0
    for value in values:
        total += value
    return total / len(values)

The default value is used when the option is not given. If more than one file is named, they are read in the order in
which they appear, and an error in one of them does not keep the program from reading the others. The exit status is 0
if all of them could be read, and 1 otherwise.

{"name": "get_weather", "arguments": {"city": "Oslo", "unit": "celsius"}}

"How long will it take?" she asked. He looked at the clock in the hall, which was five minutes slow, and then at the
letter in her hand. "That depends," he said, "on whether you want it done well, or only done."
)";

IdRows read_rows(const std::string& path, int64_t vocab) {
  const auto file = Checkpoint::open(path);
  const TensorView* t = file->find("ids");
  if (!t || t->shape.size() != 2 || t->shape[1] < 2)
    throw Error(fmt::format("{}: expected a tensor 'ids' of shape [N, L], L at least 2", path));
  const std::vector<int32_t> all = read_ids(*file, *t, vocab);
  IdRows rows;
  for (int64_t i = 0; i < t->shape[0]; ++i)
    rows.emplace_back(all.begin() + i * t->shape[1], all.begin() + (i + 1) * t->shape[1]);
  return rows;
}

// The text's ids, cut where the context ends.
IdRows encode_rows(const std::string& model, std::string_view text, int64_t length) {
  const std::vector<int32_t> all = Tokenizer::from_model(model).encode(text, ControlTokens::Recognise);
  IdRows rows;
  for (int64_t i = 0; i < static_cast<int64_t>(all.size()); i += length)
    rows.emplace_back(all.begin() + i, all.begin() + std::min<int64_t>(all.size(), i + length));
  return rows;
}

// A model that is shown the ids of one row after the other, a chunk at a time.
class Reader {
 public:
  Reader(const ModelFlags& flags, const ModelOptions& options)
      : open_(open_model(flags, options)), batch_(open_.stream->device(), open_.model->options().batch) {}

  void start(int64_t length) {
    sequence_ = nullptr;  // there is room for one
    sequence_ = Sequence::create(open_.model->memory());
    if (!sequence_->reserve(length)) throw Error(fmt::format("a row of {} ids is longer than --ctx", length));
  }
  // Logits after each of the ids.
  Rows read(std::span<const int32_t> ids) {
    sequence_->append(ids);
    const BatchItem item{sequence_.get(), ids, Role::Prefill, kAllRows};
    batch_.build({&item, 1});
    const auto n = static_cast<int64_t>(ids.size());
    Rows logits = download(*open_.stream, open_.model->forward(batch_), n);
    sequence_->commit(static_cast<int32_t>(n));
    return logits;
  }

 private:
  OpenModel open_;
  Batch batch_;
  std::unique_ptr<Sequence> sequence_;
};

}  // namespace

int eval_text(const ModelFlags& flags, const TextEvaluation& what) {
  const Config config = read_config(*Checkpoint::open(flags.model));
  ModelFlags other = flags;
  other.model = what.against;
  if (!what.against.empty()) {
    const Config against = read_config(*Checkpoint::open(what.against));
    if (against.vocab != config.vocab)
      throw Error(fmt::format("{}: expected a vocabulary of {} as {} has, found {}", what.against,
                              config.vocab, flags.model, against.vocab));
  }

  IdRows rows;
  if (!what.ids.empty()) {
    rows = read_rows(what.ids, config.vocab);
  } else {
    const std::string text = what.text.empty() ? std::string(kPage) : read_file(what.text);
    const int64_t length = what.context > 0 ? what.context : std::min<int64_t>(config.max_positions, 4096);
    rows = encode_rows(flags.model, text, length);
    if (!what.against.empty() && rows != encode_rows(what.against, text, length))
      throw Error(fmt::format("{} and {}: their tokenizers make different ids of the text", flags.model,
                              what.against));
  }
  int64_t longest = 0;
  for (const auto& row : rows) longest = std::max(longest, static_cast<int64_t>(row.size()));
  if (longest < 2) throw Error("eval: nothing to score: fewer than 2 ids");

  const int64_t chunk = std::clamp<int64_t>((int64_t{1} << 27) / config.vocab / 4, 16, kEvalChunk);
  ModelOptions options;
  options.drafts = false;
  options.batch = {chunk, 1, chunk, what.context > 0 ? what.context : longest};
  Reader reader(flags, options);
  std::optional<Reader> against;
  if (!what.against.empty()) against.emplace(other, options);

  double nll = 0, nll_against = 0;
  std::vector<double> divergences;
  int64_t n = 0, agree = 0;
  for (const auto& ids : rows) {
    const auto length = static_cast<int64_t>(ids.size());
    reader.start(length);
    if (against) against->start(length);
    for (int64_t at = 0; at < length; at += chunk) {
      const auto part = std::span(ids).subspan(at, std::min(chunk, length - at));
      const Rows logits = reader.read(part), theirs = against ? against->read(part) : Rows{};
      for (int64_t i = 0; i < logits.n && at + i + 1 < length; ++i, ++n) {
        const float* row = logits.row(i);
        const int32_t next = ids[at + i + 1];
        nll += log_sum_exp(row, logits.cols) - static_cast<double>(row[next]);
        if (!against) continue;
        const float* their_row = theirs.row(i);
        nll_against += log_sum_exp(their_row, theirs.cols) - static_cast<double>(their_row[next]);
        divergences.push_back(divergence(row, their_row, logits.cols));
        agree += argmax(row, logits.cols) == argmax(their_row, logits.cols);
      }
    }
  }
  const auto count = static_cast<double>(n);
  nll /= count;
  nll_against /= count;
  fmt::print("nll {:.6f}\n{} ids scored in {} rows, perplexity {:.4f}\n", nll, n, rows.size(), std::exp(nll));
  if (!against) return 0;

  // Rounding leaves some divergences of equal rows a little below 0.
  double sum = 0;
  for (double& d : divergences) sum += d = std::max(d, 0.0);
  std::sort(divergences.begin(), divergences.end());
  const auto p99 = static_cast<size_t>(std::ceil(0.99 * count)) - 1;
  fmt::print("against {}: nll {:.6f}, difference {:+.6f}\n", what.against, nll_against, nll - nll_against);
  fmt::print(
      "KL divergence: mean {:.3e}, p99 {:.3e}, max {:.3e}; the same first choice {} of {} ({:.2f} %)\n",
      sum / count, divergences[p99], divergences.back(), agree, n,
      100.0 * static_cast<double>(agree) / count);
  return 0;
}

}  // namespace quern
