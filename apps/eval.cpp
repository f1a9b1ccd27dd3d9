// quern eval: how far the model is from a reference's outputs, or from another model, and how well it predicts a text.
#include "eval.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/generation_config.h"
#include "checkpoint/output_file.h"
#include "commands.h"
#include "model_flags.h"

namespace quern {
namespace {

Rows read_floats(const Checkpoint& file, const TensorView& t) {
  if (t.dtype != DType::F32 || t.shape.size() != 2)
    throw Error(
        fmt::format("{}: expected a F32 matrix, found {} {}", file.where(t), name(t.dtype), t.shape_text()));
  Rows rows{t.shape[0], t.shape[1], std::vector<float>(t.elements())};
  std::memcpy(rows.values.data(), t.bytes.data(), t.bytes.size());
  return rows;
}

// ‖a-b‖₂ / ‖b‖₂ over the last rows of `got` that `expected` has.
double relative_error(const Rows& got, const Rows& expected) {
  double difference = 0, norm = 0;
  const int64_t skip = got.n - expected.n;
  for (int64_t i = 0; i < expected.n; ++i)
    for (int64_t j = 0; j < expected.cols; ++j) {
      const double a = got.row(skip + i)[j], b = expected.row(i)[j];
      difference += (a - b) * (a - b);
      norm += b * b;
    }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? INFINITY : error;
}

// By how much the best logit leads all others.
float margin(const float* logits, int64_t n, int32_t best) {
  float second = -HUGE_VALF;
  for (int64_t i = 0; i < n; ++i)
    if (i != best) second = std::max(second, logits[i]);
  return logits[best] - second;
}

// Index scores of the blocks a row may choose from, recomputed in double precision from what the model scored with.
std::vector<double> block_scores(Model& model, const Sequence& sequence, int attention, const float* query,
                                 int64_t n_blocks) {
  const QsaCache& cache = model.memory().kv.layer(attention);
  const int64_t d = cache.pooled.cols(), heads = model.config().indexer.n_heads;
  std::vector<float> keys(n_blocks * d);
  for (int64_t b = 0; b < n_blocks; b += kPageBlocks) {
    const int64_t n = std::min<int64_t>(kPageBlocks, n_blocks - b);
    model.stream().download(keys.data() + b * d, cache.pooled.item(sequence.pages()[b / kPageBlocks]).data,
                            n * d * 4);
  }
  model.stream().synchronize();
  std::vector<double> scores(n_blocks);
  for (int64_t b = 0; b < n_blocks; ++b)
    for (int64_t h = 0; h < heads; ++h) {
      double dot = 0;
      for (int64_t i = 0; i < d; ++i) dot += double{query[h * d + i]} * keys[b * d + i];
      scores[b] += std::max(dot, 0.0) / std::sqrt(static_cast<double>(d));
    }
  return scores;
}

// Blocks that only one side chose, and how far the farthest of them is from the border score, relative to it.
struct Strays {
  int64_t n = 0;
  double farthest = 0;
};

constexpr std::string_view kInputIds = ".input_ids";
constexpr double kBorder = 0.02;  // a block within this of the border may go either way

class Evaluation {
 public:
  Evaluation(Model& model, Batch& batch, std::vector<int32_t> end_ids)
      : model_(model), batch_(batch), end_ids_(std::move(end_ids)) {}

  // Runs the prompt in steps of at most `chunk` rows, the last of them `chunk` rows where there are as many; logits of
  // the last step's last n_logits rows.
  Rows prefill(Sequence& sequence, const std::vector<int32_t>& ids, int64_t chunk, int64_t n_logits) {
    sequence.append(ids);
    if (!sequence.reserve(static_cast<int64_t>(ids.size())))
      throw Error(fmt::format("a case of {} ids is longer than --ctx", ids.size()));
    Rows logits;
    for (int64_t left = static_cast<int64_t>(ids.size()); left > 0;) {
      const int64_t n = left % chunk == 0 ? chunk : left % chunk,
                    at = static_cast<int64_t>(ids.size()) - left;
      left -= n;
      logits = step(sequence, std::span(ids).subspan(at, n), Role::Prefill, left == 0 ? n_logits : 0);
    }
    return logits;
  }

  // How many greedy ids after what the sequence has run are the wanted ones; `logits` are those of its last row. Where
  // one is not, `lead` is by how much the model prefers its own, relative to the largest logit.
  size_t greedy(Sequence& sequence, Rows logits, const std::vector<int32_t>& wanted, bool masked,
                double& lead) {
    for (size_t i = 0; i < wanted.size(); ++i) {
      const float* row = logits.row(logits.n - 1);
      const int32_t id = argmax(row, logits.cols, masked ? end_ids_ : std::vector<int32_t>());
      if (id != wanted[i]) {
        float largest = 0;
        for (int64_t j = 0; j < logits.cols; ++j) largest = std::max(largest, std::abs(row[j]));
        lead = (row[id] - row[wanted[i]]) / largest;
        return i;
      }
      if (i + 1 == wanted.size()) break;
      // The reference goes on behind an end of turn, or it does not end where the model does.
      if (!masked && std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) {
        lead = HUGE_VAL;
        return i + 1;
      }
      sequence.append(id);
      if (!sequence.reserve(sequence.length() + 1)) throw Error("a greedy continuation is longer than --ctx");
      logits = step(sequence, std::span(&id, 1), Role::Decode, 1);
    }
    return wanted.size();
  }

 private:
  Rows step(Sequence& sequence, std::span<const int32_t> ids, Role role, int64_t n_logits) {
    const BatchItem item{&sequence, ids, role, static_cast<int32_t>(n_logits)};
    batch_.build({&item, 1});
    const Tensor logits = model_.forward(batch_);
    sequence.commit(static_cast<int32_t>(ids.size()));
    return n_logits > 0 ? download(model_.stream(), logits, n_logits) : Rows{};
  }

  Model& model_;
  Batch& batch_;
  std::vector<int32_t> end_ids_;
};

std::vector<int32_t> end_ids_of(const Checkpoint& checkpoint, const Config& config) {
  const GenerationConfig generation = read_generation_config(checkpoint);
  return generation.eos_ids.empty() ? config.eos_ids : generation.eos_ids;
}

// Whether a reference's greedy ids were chosen with the end tokens masked out (metadata `ends`; absent: stop).
bool greedy_is_masked(const std::string& path) {
  const auto file = MappedFile::open(path);  // Checkpoint has checked its header
  uint64_t length = 0;
  std::memcpy(&length, file->bytes().data(), 8);
  const Json header = parse_json({reinterpret_cast<const char*>(file->bytes().data()) + 8, length});
  const Json* metadata = header.find("__metadata__");
  const Json* ends = metadata ? metadata->find("ends") : nullptr;
  if (!ends) return false;
  if (ends->as_string() != "masked" && ends->as_string() != "stop")
    throw Error(
        fmt::format("{}: metadata 'ends': expected stop or masked, found '{}'", path, ends->as_string()));
  return ends->as_string() == "masked";
}

struct Worst {
  double error = 0;
  std::string where;
  void take(double e, const std::string& name) {
    if (!(e <= error) || where.empty()) {
      error = e;
      where = name;
    }
  }
};

// What the model says of a reference's cases, as a file that can stand in for it: C.input_ids and C.logits.
class Writer {
 public:
  template <typename T>
  void add(const std::string& name, DType dtype, std::initializer_list<int64_t> shape, const T* values) {
    const auto begin = static_cast<int64_t>(data_.size());
    int64_t bytes = sizeof(T);
    for (const int64_t d : shape) bytes *= d;
    data_.append(reinterpret_cast<const char*>(values), static_cast<size_t>(bytes));
    Json entry;
    entry.set("dtype", std::string(quern::name(dtype)));
    entry.set("shape", Json::Array(shape.begin(), shape.end()));
    entry.set("data_offsets", Json::Array{begin, begin + bytes});
    header_.set(name, entry);
  }
  void write(const std::string& path) const {
    std::string header = write_json(header_);
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    OutputFile file(path);
    file.write(std::string_view(reinterpret_cast<const char*>(&length), sizeof length));
    file.write(header);
    file.write(data_);
    file.finish();
  }

 private:
  Json header_;
  std::string data_;
};

int eval_reference(const ModelFlags& flags, const std::string& path, double tolerance, bool only_logits,
                   int64_t context, bool verbose, const std::string& write) {
  const auto file = Checkpoint::open(path);
  if (file->kind() != Checkpoint::Kind::Safetensors)
    throw Error(fmt::format("{}: expected a safetensors file of the reference's outputs, found GGUF", path));
  const bool masked = greedy_is_masked(path);

  std::vector<std::string> cases;
  std::set<std::string> skipped;
  int64_t longest = 1, most_logits = 4;
  for (const TensorView& t : file->tensors()) {
    const size_t dot = t.name.find('.');
    const std::string which = t.name.substr(0, dot);
    if (which == "vision") {
      skipped.insert("vision");
    } else if (t.name.ends_with(kInputIds)) {
      cases.push_back(t.name.substr(0, t.name.size() - kInputIds.size()));
      longest = std::max(longest, t.elements());
      const TensorView* logits = file->find(cases.back() + ".logits");
      if (logits && !logits->shape.empty()) most_logits = std::max(most_logits, logits->shape[0]);
    } else if (t.name.find(".greedy") != std::string::npos) {
      longest = std::max(longest, t.elements());
    }
  }
  if (cases.empty()) throw Error(fmt::format("{}: no tensor named 'CASE.input_ids'", path));

  const int64_t chunk = std::min(longest, std::max(kEvalChunk, most_logits));
  ModelOptions options;
  options.batch = {chunk, 1, std::min(most_logits, chunk), context};
  if (context == 0) options.batch.context = 2 * longest + kPageTokens;
  OpenModel open = open_model(flags, options);
  Model& model = *open.model;
  Batch batch(model.stream().device(), model.options().batch);
  Evaluation evaluation(model, batch, end_ids_of(*open.checkpoint, model.config()));

  Worst worst_of_all;
  Writer writer;
  int failures = 0;
  for (const std::string& which : cases) {
    const TensorView& t = *file->find(which + ".input_ids");
    const std::vector<int32_t> ids = read_ids(*file, t, model.config().vocab);
    const auto T = static_cast<int64_t>(ids.size());
    if (T == 0) throw Error(fmt::format("{}: no ids", file->where(t)));

    // The reference's tensors of this case, and what the model says.
    std::map<std::string, const TensorView*> expected;
    for (const TensorView& e : file->tensors())
      if (e.name.starts_with(which + ".")) expected[e.name.substr(which.size() + 1)] = &e;
    const std::string last_layer = fmt::format("layer{}", model.config().n_layers - 1);
    if (which == "chat" && file->find("mtp.logits") && model.has_drafts())
      expected["mtp.logits"] = file->find("mtp.logits");
    if (which == "chat" && file->find("mtp.multi_hidden"))
      expected["mtp.multi_hidden"] = file->find("mtp.multi_hidden");
    std::map<std::string, Rows> got;
    model.set_tap([&](std::string_view tap, Tensor value) {
      const std::string name(tap);
      const auto keep = [&](const std::string& as, int64_t rows) {
        got[as] = download(model.stream(), value, rows);
      };
      if (expected.contains(name) && !name.starts_with("select")) keep(name, expected[name]->shape[0]);
      if (name == last_layer && expected.contains("mtp.multi_hidden")) keep("mtp.multi_hidden", 4);
      if (name.starts_with("select") || name.starts_with("index") || name.starts_with("ple.")) keep(name, 4);
    });
    const TensorView* logits_view = expected.contains("logits") ? expected["logits"] : nullptr;
    const int64_t n_logits = std::min(T, std::max<int64_t>(4, logits_view ? logits_view->shape[0] : 1));
    const auto sequence = Sequence::create(model.memory());
    Rows logits = evaluation.prefill(*sequence, ids, chunk, n_logits);
    model.set_tap({});
    got["logits"] = logits;

    Worst worst;
    double logits_error = 0;
    int64_t misjudged = 0;  // choices that rounding does not explain
    std::string notes;
    for (const auto& [name, view] : expected) {
      if (name == "input_ids" || name == "greedy") continue;
      if (name.starts_with("select")) {
        const std::string layer = name.substr(6);
        const auto blocks = got.find(name), counts = got.find("select.counts" + layer);
        if (blocks == got.end() || counts == got.end()) continue;
        if (view->dtype != DType::U8 || view->shape.size() != 2 || view->shape[1] != T)
          throw Error(fmt::format("{}: expected U8 [n, {}]", file->where(*view), T));
        const int64_t n = std::min(view->shape[0], blocks->second.n);
        const auto index = got.find("index" + layer);
        const int attention = static_cast<int>(std::count(model.config().layers.begin(),
                                                          model.config().layers.begin() + std::stoi(layer),
                                                          LayerKind::SparseAttention));
        int64_t equal = 0;
        Strays strays;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t row = blocks->second.n - n + i, position = T - n + i;
          const int64_t n_blocks = (position + 1) / kBlockTokens;
          const std::byte* want = view->bytes.data() + (view->shape[0] - n + i) * T;
          std::vector<bool> chosen(n_blocks);
          const auto* block = reinterpret_cast<const int32_t*>(blocks->second.row(row));
          const int32_t count = *reinterpret_cast<const int32_t*>(counts->second.row(row));
          for (int32_t j = 0; j < count; ++j) chosen.at(block[j]) = true;
          std::vector<int64_t> differ;
          for (int64_t b = 0; b < n_blocks; ++b)
            if (chosen[b] != (want[b * kBlockTokens] != std::byte{0})) differ.push_back(b);
          equal += differ.empty();
          if (differ.empty()) continue;
          const auto scores =
              block_scores(model, *sequence, attention, index->second.row(index->second.n - n + i), n_blocks);
          double border = HUGE_VAL;
          for (int64_t b = 0; b < n_blocks; ++b)
            if (chosen[b]) border = std::min(border, scores[b]);
          strays.n += static_cast<int64_t>(differ.size());
          for (const int64_t b : differ)
            strays.farthest = std::max(strays.farthest, std::abs(scores[b] - border) / border);
        }
        notes += fmt::format(", {} {}/{}", name, equal, n);
        if (strays.n > 0) {
          notes += fmt::format(" ({} blocks differ, at most {:.2g} % from the border)", strays.n,
                               100 * strays.farthest);
          misjudged += !(strays.farthest <= kBorder);
        }
        continue;
      }
      const Rows want = read_floats(*file, *view);
      Rows have;
      if (name.starts_with("ple")) {  // the block adds to the residual in place: its output is the difference
        const auto before = got.find("ple.before" + name.substr(3)),
                   after = got.find("ple.after" + name.substr(3));
        if (before == got.end() || after == got.end()) continue;
        have = after->second;
        for (size_t i = 0; i < have.values.size(); ++i) have.values[i] -= before->second.values[i];
      } else if (got.contains(name)) {
        have = got[name];
      } else {
        continue;
      }
      if (have.cols != want.cols || have.n < want.n)
        throw Error(fmt::format("{}: expected at most {} rows of {}, found {}", file->where(*view), have.n,
                                have.cols, view->shape_text()));
      const double error = relative_error(have, want);
      if (verbose) {
        std::string rows;  // each of them, where there are few
        for (int64_t i = 0; want.n <= 4 && i < want.n; ++i) {
          const auto one = [&](const Rows& r) {
            const float* row = r.row(r.n - want.n + i);
            return Rows{1, r.cols, {row, row + r.cols}};
          };
          rows += fmt::format(" {:.1e}", relative_error(one(have), one(want)));
        }
        fmt::print("  {}.{} {:.2e}{}\n", which, name, error, rows.empty() ? "" : " rows" + rows);
      }
      if (name == "logits") logits_error = error;
      if (!only_logits || name == "logits") worst.take(error, name);
    }
    std::string line = fmt::format("{}: {} ids, worst {:.2e} ({})", which, T, worst.error, worst.where);
    if (logits_view) {
      const Rows want = read_floats(*file, *logits_view);
      if (!write.empty()) {
        writer.add(which + ".input_ids", DType::I32, {T}, ids.data());
        writer.add(which + ".logits", DType::F32, {want.n, logits.cols}, logits.row(logits.n - want.n));
      }
      int64_t same = 0, close = 0;
      double kl = 0;
      for (int64_t i = 0; i < want.n; ++i) {
        const float* row = logits.row(logits.n - want.n + i);
        const int32_t have_id = argmax(row, want.cols), want_id = argmax(want.row(i), want.cols);
        same += have_id == want_id;
        if (have_id != want_id) {
          float error = 0;
          for (int64_t j = 0; j < want.cols; ++j) error = std::max(error, std::abs(row[j] - want.row(i)[j]));
          const bool decided = margin(want.row(i), want.cols, want_id) > 5 * error;
          close += !decided;
          misjudged += decided;
        }
        kl += divergence(row, want.row(i), want.cols) / static_cast<double>(want.n);
      }
      line += fmt::format(", logits {:.2e}, argmax {}/{}", logits_error, same, want.n);
      if (close > 0) line += fmt::format(" ({} too close to call)", close);
      line += fmt::format(", KL {:.1e}", std::max(0.0, kl));
    }
    line += notes;
    if (expected.contains("greedy")) {
      const std::vector<int32_t> want = read_ids(*file, *expected["greedy"], model.config().vocab);
      double lead = 0;
      const size_t same = evaluation.greedy(*sequence, logits, want, masked, lead);
      line += fmt::format(", greedy {}/{}", same, want.size());
      // As an argmax, an id that rounding explains is no fault.
      if (lead > 5 * std::max(tolerance, logits_error)) {
        line += fmt::format(" (the next leads by {:.2g} of the largest logit)", lead);
        ++misjudged;
      }
    }
    if (worst.where.empty() && !logits_view && notes.empty() && !expected.contains("greedy"))
      throw Error(fmt::format("{}: case '{}' has ids, and no outputs to compare", path, which));
    fmt::print("{}\n", line);
    std::fflush(stdout);
    worst_of_all.take(worst.error, which + "." + worst.where);
    failures += !(worst.error <= tolerance) || misjudged > 0;
  }
  for (const std::string& s : skipped) fmt::print("{}: skipped, images are not supported yet\n", s);
  fmt::print("{} cases, {} beyond the tolerance of {:.0e}; worst {:.2e} ({})\n", cases.size(), failures,
             tolerance, worst_of_all.error, worst_of_all.where);
  if (!write.empty()) writer.write(write);
  return failures > 0 ? 1 : 0;
}

}  // namespace

int eval_main(int argc, char** argv) {
  CLI::App app("Compares the model with outputs of the reference or with another model, or scores a text.");
  ModelFlags flags;
  flags.kv = "f32";
  flags.add_to(app);
  std::string reference, write;
  TextEvaluation text;
  double tolerance = 1e-5;
  bool verbose = false, only_logits = false;
  auto* what = app.add_option_group("what", "what to compare with");
  auto* from = what->add_option("--reference", reference, "a file of the reference's outputs")
                   ->check(CLI::ExistingFile);
  auto* ids = what->add_option("--ids", text.ids,
                               "a safetensors file with token ids 'ids' [N, L]: each row is scored alone")
                  ->check(CLI::ExistingFile)
                  ->excludes(from);
  what->add_option("--text", text.text, "a text to score")->check(CLI::ExistingFile)->excludes(from, ids);
  what->add_option("--against", text.against,
                   "another model: how far MODEL's predictions are from its, on --ids, --text, or a page of "
                   "English that is built in")
      ->excludes(from);
  what->require_option(1, 2);
  app.add_option("--tolerance", tolerance, "largest relative error of --reference")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--logits", only_logits,
               "judge the logits alone: where 16-bit rounding moves a choice, module outputs part")
      ->needs(from);
  app.add_option("--ctx", text.context, "longest sequence; 0: as the input needs")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--write", write, "a file to write with MODEL's own ids and logits of the reference's cases")
      ->needs(from);
  app.add_flag("--each", verbose, "print every compared tensor")->needs(from);
  if (const auto code = parse_options(app, argc, argv)) return *code;

  if (!reference.empty())
    return eval_reference(flags, reference, tolerance, only_logits, text.context, verbose, write);
  return eval_text(flags, text);
}

}  // namespace quern
