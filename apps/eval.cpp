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

  // n greedy ids after what the sequence has run; `logits` are those of its last row.
  std::vector<int32_t> greedy(Sequence& sequence, Rows logits, int64_t n, bool masked) {
    std::vector<int32_t> ids;
    while (static_cast<int64_t>(ids.size()) < n) {
      const int32_t id =
          argmax(logits.row(logits.n - 1), logits.cols, masked ? end_ids_ : std::vector<int32_t>());
      ids.push_back(id);
      if (static_cast<int64_t>(ids.size()) == n) break;
      if (!masked && std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) break;
      sequence.append(id);
      if (!sequence.reserve(sequence.length() + 1)) throw Error("a greedy continuation is longer than --ctx");
      logits = step(sequence, std::span(&id, 1), Role::Decode, 1);
    }
    return ids;
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

int eval_reference(const ModelFlags& flags, const std::string& path, double tolerance, int64_t context,
                   bool verbose, const std::string& write) {
  const auto file = Checkpoint::open(path);
  const bool masked = greedy_is_masked(path);

  std::vector<std::string> cases;
  std::set<std::string> skipped;
  int64_t longest = 1, most_logits = 4;
  for (const TensorView& t : file->tensors()) {
    const size_t dot = t.name.find('.');
    const std::string which = t.name.substr(0, dot);
    if (which == "vision") {
      skipped.insert("vision");
    } else if (t.name.substr(dot + 1) == "input_ids") {
      cases.push_back(which);
      longest = std::max(longest, t.elements());
      const TensorView* logits = file->find(which + ".logits");
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
      if (name.starts_with("select") || name.starts_with("ple.")) keep(name, 4);
    });
    const TensorView* logits_view = expected.contains("logits") ? expected["logits"] : nullptr;
    const int64_t n_logits = std::min(T, std::max<int64_t>(4, logits_view ? logits_view->shape[0] : 1));
    const auto sequence = Sequence::create(model.memory());
    Rows logits = evaluation.prefill(*sequence, ids, chunk, n_logits);
    model.set_tap({});
    got["logits"] = logits;

    Worst worst;
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
        int64_t equal = 0;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t row = blocks->second.n - n + i, position = T - n + i;
          std::vector<std::byte> sees(T);
          const auto* block = reinterpret_cast<const int32_t*>(blocks->second.row(row));
          const int32_t count = *reinterpret_cast<const int32_t*>(counts->second.row(row));
          for (int32_t j = 0; j < count; ++j)
            std::fill_n(sees.begin() + int64_t{block[j]} * kBlockTokens, kBlockTokens, std::byte{1});
          for (int64_t p = (position + 1) / kBlockTokens * kBlockTokens; p <= position; ++p)
            sees[p] = std::byte{1};
          equal += std::equal(sees.begin(), sees.end(), view->bytes.begin() + (view->shape[0] - n + i) * T);
        }
        notes += fmt::format(", {} {}/{}", name, equal, n);
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
      if (verbose) fmt::print("  {}.{} {:.2e}\n", which, name, error);
      worst.take(error, name);
    }
    std::string line = fmt::format("{}: {} ids, worst {:.2e} ({})", which, T, worst.error, worst.where);
    if (logits_view) {
      const Rows want = read_floats(*file, *logits_view);
      if (!write.empty()) {
        writer.add(which + ".input_ids", DType::I32, {T}, ids.data());
        writer.add(which + ".logits", DType::F32, {want.n, logits.cols}, logits.row(logits.n - want.n));
      }
      int64_t same = 0;
      double kl = 0;
      for (int64_t i = 0; i < want.n; ++i) {
        const float* row = logits.row(logits.n - want.n + i);
        same += argmax(row, want.cols) == argmax(want.row(i), want.cols);
        kl += divergence(row, want.row(i), want.cols) / static_cast<double>(want.n);
      }
      line += fmt::format(", argmax {}/{}, KL {:.1e}", same, want.n, std::max(0.0, kl));
    }
    line += notes;
    if (expected.contains("greedy")) {
      const std::vector<int32_t> want = read_ids(*file, *expected["greedy"], model.config().vocab);
      const std::vector<int32_t> have =
          evaluation.greedy(*sequence, logits, static_cast<int64_t>(want.size()), masked);
      size_t same = 0;
      while (same < std::min(have.size(), want.size()) && have[same] == want[same]) ++same;
      line += fmt::format(", greedy {}/{}", same, want.size());
    }
    fmt::print("{}\n", line);
    std::fflush(stdout);
    worst_of_all.take(worst.error, which + "." + worst.where);
    failures += !(worst.error <= tolerance);
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
  bool verbose = false;
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
  app.add_option("--tolerance", tolerance, "largest relative error of --reference")->capture_default_str();
  app.add_option("--ctx", text.context, "longest sequence; 0: as the input needs")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--write", write, "a file to write with MODEL's own ids and logits of the reference's cases")
      ->needs(from);
  app.add_flag("--each", verbose, "print every compared tensor")->needs(from);
  if (const auto code = parse_options(app, argc, argv)) return *code;

  if (!reference.empty()) return eval_reference(flags, reference, tolerance, text.context, verbose, write);
  return eval_text(flags, text);
}

}  // namespace quern
