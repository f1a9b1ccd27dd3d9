#include "checkpoint/checkpoint.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/json_file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/safetensors.h"

namespace quern {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr size_t kMaxJson = 256u << 20;  // the index of a release with 150 000 tensors has 20 MB
constexpr JsonLimits kJsonLimits{.max_depth = 64, .unique_keys = true};

std::string path_name(const fs::path& p) { return p.filename().string(); }

bool is_inside(const fs::path& file, const fs::path& folder) {
  const auto [end_of_folder, unused] = std::mismatch(folder.begin(), folder.end(), file.begin(), file.end());
  return end_of_folder == folder.end();
}

// The file of the folder that an index names. It must lie inside the folder, symbolic links followed; the one
// place outside that is allowed is the blob store of the hub's download cache, which keeps a model as
// <repo>/snapshots/<revision>/<file> → <repo>/blobs/<hash>.
fs::path shard_path(const fs::path& folder, const std::string& name, const fs::path& index) {
  const auto refuse = [&](std::string_view why) {
    throw Error(fmt::format("{}: names '{}', {}", index.string(), name, why));
  };
  const fs::path relative(name);
  if (name.empty() || name.find('\0') != std::string::npos) refuse("which is no file name");
  if (relative.is_absolute()) refuse("an absolute path; expected a file of the folder");
  for (const fs::path& part : relative) {
    if (part == "..") refuse("which lies outside the folder");
  }
  if (relative.extension() != ".safetensors") refuse("which is no .safetensors file");
  const fs::path path = folder / relative;
  std::error_code failed;
  const fs::path real = fs::canonical(path, failed);
  if (failed) refuse("which is missing");
  const fs::path real_folder = fs::canonical(folder);
  if (is_inside(real, real_folder)) return path;
  const fs::path snapshots = real_folder.parent_path();
  if (snapshots.filename() == "snapshots" && is_inside(real, snapshots.parent_path() / "blobs")) return path;
  refuse("a link to a file outside the folder");
  return {};
}

int64_t integer_or_0(const GgufFile& f, std::string_view key) {
  return f.find(key) == nullptr ? 0 : f.integer(key);
}

// The first shard of the one model in a folder of GGUFs; a vision tower's, an importance matrix's or an adapter's file
// beside it says by its type that it is not it.
std::optional<fs::path> first_gguf(const fs::path& folder) {
  std::vector<fs::path> all, firsts;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") all.push_back(entry.path());
  }
  if (all.empty()) return std::nullopt;
  std::sort(all.begin(), all.end());
  for (const fs::path& p : all) {
    const auto file = MappedFile::open(p);
    const GgufFile f = parse_gguf(file->bytes(), p.string());
    const GgufValue* type = f.find("general.type");
    if (type != nullptr && type->text != "model") continue;
    if (integer_or_0(f, "split.no") == 0) firsts.push_back(p);
  }
  if (firsts.size() == 1) return firsts[0];
  std::string names;
  for (const fs::path& p : firsts) names += (names.empty() ? "several: " : ", ") + path_name(p);
  throw Error(fmt::format("{}: expected the GGUF files of one model, found {}", folder.string(),
                          names.empty() ? "no first shard" : names));
}

}  // namespace

std::vector<int64_t> squeezed(std::span<const int64_t> shape) {
  std::vector<int64_t> out;
  for (const int64_t d : shape) {
    if (d != 1) out.push_back(d);
  }
  return out;
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += fmt::format("{}{}", i ? ", " : "", shape[i]);
  return out + "]";
}

std::optional<fs::path> find_gguf(const fs::path& model) {
  std::error_code failed;
  if (!fs::is_directory(model, failed)) {
    if (model.extension() == ".gguf") return model;
    return std::nullopt;
  }
  // A folder with both is a Hugging Face one: its GGUFs are exports of it.
  if (fs::exists(model / kIndex) || fs::exists(model / "model.safetensors") ||
      fs::exists(model / "config.json"))
    return std::nullopt;
  return first_gguf(model);
}

fs::path folder_of_model(const fs::path& model) {
  if (model.extension() != ".safetensors" || fs::is_directory(model)) return model;
  return model.has_parent_path() ? model.parent_path() : fs::path(".");
}

std::string logical_name(std::string_view name) {
  for (const std::string_view prefix : {"model.language_model.", "model."}) {
    if (name.starts_with(prefix)) return std::string(name.substr(prefix.size()));
  }
  return std::string(name);
}

std::string hugging_face_name(std::string_view name) {
  if (name.starts_with("lm_head.") || name.starts_with("mtp.")) return std::string(name);
  return fmt::format("{}{}", name.starts_with("visual.") ? "model." : "model.language_model.", name);
}

int64_t TensorView::elements() const {
  int64_t n = 1;
  for (const int64_t d : shape) n *= d;
  return n;
}

std::string TensorView::shape_text() const { return quern::shape_text(shape); }

Checkpoint::~Checkpoint() = default;

std::unique_ptr<Checkpoint> Checkpoint::open(const fs::path& path) {
  std::unique_ptr<Checkpoint> c(new Checkpoint);
  c->path_ = path;
  std::error_code failed;
  const fs::file_status status = fs::status(path, failed);
  if (!fs::exists(status)) throw Error(fmt::format("{}: no such file or folder", path.string()));
  if (fs::is_directory(status)) {
    c->folder_ = path;
    if (const auto gguf = find_gguf(path))
      c->open_gguf(*gguf);
    else
      c->open_safetensors_folder();
  } else if (path.extension() == ".safetensors") {
    c->folder_ = folder_of_model(path);
    c->add_file(path);
  } else if (path.extension() == ".gguf") {
    c->folder_ = path.has_parent_path() ? path.parent_path() : fs::path(".");
    c->open_gguf(path);
  } else {
    throw Error(fmt::format("{}: expected a Hugging Face folder, a .safetensors file or a .gguf file",
                            path.string()));
  }
  if (c->kind_ == Kind::Safetensors) {
    const fs::path config = c->folder_ / "config.json";
    if (fs::exists(config)) c->config_ = read_json_file(config, kMaxJson, kJsonLimits);
  }
  c->used_.resize(c->tensors_.size());
  return c;
}

void Checkpoint::open_safetensors_folder() {
  const fs::path index_path = folder_ / kIndex;
  if (!fs::exists(index_path)) {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty())
      throw Error(fmt::format("{}: expected .safetensors or .gguf files in this folder, found none",
                              folder_.string()));
    for (const fs::path& f : files) add_file(f);
    return;
  }

  const Json index = read_json_file(index_path, kMaxJson, kJsonLimits);
  const Json* map = index.find("weight_map");
  if (map == nullptr || !map->is_object())
    throw Error(fmt::format("{}: expected an object 'weight_map'", index_path.string()));
  std::set<std::string> names;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!file.is_string())
      throw Error(fmt::format("{}: expected the file of tensor '{}' to be a string, found {}",
                              index_path.string(), tensor, kind_name(file.kind())));
    names.insert(file.as_string());
  }
  std::unordered_map<std::string, std::string> file_of;  // as the files have it
  for (const std::string& n : names) {
    const size_t first = tensors_.size();
    add_file(shard_path(folder_, n, index_path));
    for (size_t i = first; i < tensors_.size(); ++i) file_of.emplace(tensors_[i].file_name, n);
  }
  for (const auto& [tensor, file] : map->as_object()) {
    const auto found = file_of.find(tensor);
    if (found == file_of.end())
      throw Error(
          fmt::format("{}: tensor '{}' is missing from '{}'", index_path.string(), tensor, file.as_string()));
    if (found->second != file.as_string())
      throw Error(fmt::format("{}: tensor '{}': expected it in '{}', found it in '{}'", index_path.string(),
                              tensor, file.as_string(), found->second));
  }
}

void Checkpoint::add_file(const fs::path& path) {
  files_.push_back(MappedFile::open(path));
  for (SafetensorsEntry& e : parse_safetensors(files_.back()->bytes(), path.string())) {
    TensorView t;
    t.name = logical_name(e.name);
    t.file_name = std::move(e.name);
    t.dtype = e.dtype;
    t.shape = std::move(e.shape);
    t.bytes = e.bytes;
    t.file = static_cast<int>(files_.size()) - 1;
    add(std::move(t));
  }
}

void Checkpoint::add(TensorView tensor) {
  const auto [at, is_new] = by_name_.emplace(tensor.name, static_cast<int>(tensors_.size()));
  if (!is_new) {
    const TensorView& other = tensors_[static_cast<size_t>(at->second)];
    throw Error(fmt::format("{}: a second tensor of this name; the first is '{}' in {}", where(tensor),
                            other.file_name, path_name(files_[static_cast<size_t>(other.file)]->path())));
  }
  tensors_.push_back(std::move(tensor));
}

std::string Checkpoint::where(const TensorView& tensor) const {
  return fmt::format("{}: tensor '{}'", files_[static_cast<size_t>(tensor.file)]->path().string(),
                     tensor.file_name);
}

std::string Checkpoint::spelling(std::string_view name) const {
  if (kind_ == Kind::Safetensors) return hugging_face_name(name);
  std::string split(name);  // GGUF has two tensors of this one
  if (const size_t at = split.find("index_qk_proj"); at != std::string::npos) split.replace(at, 13, "q_proj");
  const std::string gguf = gguf_of_logical(split, {gguf_layers_, gguf_ple_layer_});
  return gguf.empty() ? std::string(name) : gguf;
}

void Checkpoint::drop_pages() const {
  for (const auto& file : files_) file->drop_pages();
}

void Checkpoint::read_sparsely(const TensorView& tensor) const {
  files_[static_cast<size_t>(tensor.file)]->read_sparsely(tensor.bytes);
}

int Checkpoint::index_of(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? -1 : at->second;
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const int i = index_of(name);
  return i < 0 ? nullptr : &tensors_[static_cast<size_t>(i)];
}

const TensorView* Checkpoint::take_if(std::string_view name) {
  const int i = index_of(name);
  if (i < 0) return nullptr;
  used_[static_cast<size_t>(i)] = true;
  return &tensors_[static_cast<size_t>(i)];
}

const TensorView& Checkpoint::take(std::string_view name) {
  const TensorView* t = take_if(name);
  if (t == nullptr) throw Error(fmt::format("{}: tensor '{}' is missing", path_.string(), spelling(name)));
  return *t;
}

void Checkpoint::check_shape(const TensorView& t, std::initializer_list<int64_t> shape) const {
  if (squeezed(t.shape) != squeezed({shape.begin(), shape.size()}))
    throw Error(fmt::format("{}: expected shape {}, found {}", where(t),
                            quern::shape_text({shape.begin(), shape.size()}), t.shape_text()));
}

const TensorView& Checkpoint::take(std::string_view name, std::initializer_list<int64_t> shape) {
  const TensorView& t = take(name);
  check_shape(t, shape);
  return t;
}

const TensorView* Checkpoint::take_if(std::string_view name, std::initializer_list<int64_t> shape) {
  const TensorView* t = take_if(name);
  if (t != nullptr) check_shape(*t, shape);
  return t;
}

std::vector<const TensorView*> Checkpoint::take_rows(std::string_view stem, int64_t rows, int64_t cols) {
  const std::string whole = fmt::format("{}.weight", stem);
  for (const std::string& first : {whole, fmt::format("{}.shard_0.weight", stem)}) {
    if (const TensorView* t = find(first); t != nullptr && t->dtype == DType::U8)
      throw Error(fmt::format("{}: an n-gram table of packed 4-bit values (NVFP4, INT4) is not supported",
                              where(*t)));
  }
  if (find(whole) != nullptr) return {&take(whole, {rows, cols})};
  std::vector<const TensorView*> parts;
  int64_t n = 0;
  for (;;) {
    const TensorView* part = take_if(fmt::format("{}.shard_{}.weight", stem, parts.size()));
    if (part == nullptr) break;
    if (part->shape.size() != 2 || part->shape[1] != cols ||
        part->dtype != (parts.empty() ? part : parts[0])->dtype)
      throw Error(fmt::format("{}: expected {} rows of {} values, found {} {}", where(*part),
                              name(parts.empty() ? part->dtype : parts[0]->dtype), cols, name(part->dtype),
                              part->shape_text()));
    n += part->shape[0];
    parts.push_back(part);
  }
  if (parts.empty())
    throw Error(kind_ == Kind::Gguf
                    ? fmt::format("{}: tensor '{}' is missing", path_.string(), spelling(whole))
                    : fmt::format("{}: tensor '{}' is missing, and so is '{}.shard_0.weight'", path_.string(),
                                  spelling(whole), hugging_face_name(stem)));
  if (n != rows)
    throw Error(fmt::format("{}: '{}.shard_0.weight' and the {} after it have {} rows, expected {}",
                            path_.string(), stem, parts.size() - 1, n, rows));
  return parts;
}

int Checkpoint::skip(std::string_view prefix) {
  int n = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name.starts_with(prefix)) {
      used_[i] = true;
      ++n;
    }
  }
  return n;
}

std::vector<std::string> Checkpoint::unused() const {
  std::vector<std::string> names;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!used_[i]) names.push_back(tensors_[i].file_name);
  }
  return names;
}

void Checkpoint::check_all_used() const {
  const auto first = std::find(used_.begin(), used_.end(), false);
  if (first == used_.end()) return;
  const auto n = std::count(used_.begin(), used_.end(), false);
  throw Error(fmt::format("{}: no part of the model reads this tensor{}",
                          where(tensors_[static_cast<size_t>(first - used_.begin())]),
                          n > 1 ? fmt::format(" and {} others", n - 1) : ""));
}

}  // namespace quern
