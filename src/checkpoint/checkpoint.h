// A read-only view of a model's files: name → dtype, shape, bytes, whatever the container.
//
// Names are *logical*: the Hugging Face names without the prefix `model.language_model.` or `model.`
// (`layers.3.self_attn.q_proj.weight`, `embed_tokens.weight`, `lm_head.weight`, `mtp.…`, `visual.…`). A GGUF
// file's names are mapped to the same ones (checkpoint/gguf_names.h), so the model binds one set of names;
// where the two containers store different numbers, `form` says so.
//
// Binding is closed-world: the model takes every tensor it needs, skips groups it names, and check_all_used()
// refuses what is left. Bytes lie in the mapped files, which live as long as the
// Checkpoint; only the small index projections that GGUF cuts in two are copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "base/mapped_file.h"
#include "tensor/dtype.h"

namespace quern {

struct GgufFile;  // checkpoint/gguf.h

// What the stored number is, where w is the number of the Hugging Face file.
enum class WeightForm : uint8_t {
  Plain,    // w
  OnePlus,  // 1 + w: a zero-centred norm as GGUF stores it
  NegExp,   // -exp(w): A_log as GGUF stores it
};

struct TensorView {
  std::string name;       // logical
  std::string file_name;  // as the file spells it
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  // outermost first; the last dimension is contiguous; may be empty (a scalar)
  std::span<const std::byte> bytes;
  WeightForm form = WeightForm::Plain;
  int file = 0;  // index into Checkpoint::files()

  int64_t elements() const;
  std::string shape_text() const;  // "[4096, 256]"
};

class Checkpoint {
 public:
  enum class Kind : uint8_t { Safetensors, Gguf };

  // A Hugging Face folder, a .safetensors file, a GGUF file (the first of its shards) or a folder of GGUFs.
  // Every length and offset is checked before this returns. Throws Error naming the file and the tensor.
  static std::unique_ptr<Checkpoint> open(const std::filesystem::path& path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  Kind kind() const { return kind_; }
  const std::filesystem::path& path() const { return path_; }      // as given
  const std::filesystem::path& folder() const { return folder_; }  // where config.json and the tokenizer lie
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }
  const std::vector<TensorView>& tensors() const { return tensors_; }  // in file order

  // MappedFile's advice, of all files and of one tensor's bytes.
  void drop_pages() const;
  void read_sparsely(const TensorView& tensor) const;

  // config.json of the folder; null where there is none (a lone file, GGUF).
  const Json& config() const { return config_; }

  // The metadata of a GGUF file (of its first shard); null for safetensors.
  const GgufFile* gguf() const { return gguf_.get(); }

  // The tensor, or null. Does not count as use.
  const TensorView* find(std::string_view name) const;
  // The tensor, now used; taking it again is allowed. take() throws Error where it is missing, take_if()
  // gives null. `shape` is compared without dimensions of 1 ([C, 1, 4] is [C, 4], a [1] is a scalar).
  const TensorView& take(std::string_view name);
  const TensorView& take(std::string_view name, std::initializer_list<int64_t> shape);
  const TensorView* take_if(std::string_view name);
  const TensorView* take_if(std::string_view name, std::initializer_list<int64_t> shape);
  // The parts of a table cut by rows: `stem`.shard_0.weight, .shard_1.weight, … or the whole `stem`.weight;
  // all of one dtype and width, together `rows` × `cols`.
  std::vector<const TensorView*> take_rows(std::string_view stem, int64_t rows, int64_t cols);
  // Every tensor whose logical name starts with `prefix` counts as deliberately unread. Returns how many.
  int skip(std::string_view prefix);

  std::vector<std::string> unused() const;
  // Throws Error with the number of tensors neither taken nor skipped and the first of them.
  void check_all_used() const;

  // How this container would spell a logical name, for errors.
  std::string spelling(std::string_view name) const;
  // For errors: "<file>: tensor '<name as in the file>'".
  std::string where(const TensorView& tensor) const;

 private:
  Checkpoint() = default;
  void open_safetensors_folder();
  void open_gguf(const std::filesystem::path& first);
  void assemble_index_projections();
  void add_file(const std::filesystem::path& file);
  void add(TensorView tensor);  // refuses a second one of the same logical name
  int index_of(std::string_view name) const;
  void check_shape(const TensorView& tensor, std::initializer_list<int64_t> shape) const;

  Kind kind_ = Kind::Safetensors;
  std::filesystem::path path_, folder_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<TensorView> tensors_;
  std::vector<bool> used_;
  std::unordered_map<std::string, int> by_name_;
  Json config_;
  int gguf_layers_ = 0, gguf_ple_layer_ = 0;  // of GGUF's names
  std::unique_ptr<GgufFile> gguf_;
  std::vector<std::vector<std::byte>> assembled_;  // what GGUF cuts and the model wants whole
};

// The GGUF file (first of its shards) of a model that is one, or a folder of them; none for any other path.
std::optional<std::filesystem::path> find_gguf(const std::filesystem::path& model);
// Where the tokenizer, template and configs of a Hugging Face model lie: of a .safetensors file the folder it is
// in; any other path is its own.
std::filesystem::path folder_of_model(const std::filesystem::path& model);
// The logical name of a Hugging Face tensor: the prefix `model.language_model.` or `model.` goes.
std::string logical_name(std::string_view hugging_face_name);
// The inverse, with the nested prefix the released files have.
std::string hugging_face_name(std::string_view logical_name);
// `shape` without its dimensions of 1: by it shapes are compared.
std::vector<int64_t> squeezed(std::span<const int64_t> shape);
// "[2, 3]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace quern
