#include "model/tensor_source.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "ops/quant_encode.h"
#include "ops/quant_formats.h"

namespace quern {
namespace {

// Rows of a matrix in a file, with what is needed to decode them.
struct Rows {
  const TensorView* view = nullptr;
  int64_t n = 0, k = 0;
  const std::byte* data = nullptr;  // of row 0
  int64_t stride = 0;               // bytes
  // FP8: a scale per 128 × 128 block, or one for all.
  const TensorView* scale = nullptr;
  int64_t scale_cols = 0;
  // ModelOpt: E4M3 scales per 16 columns and a scale of the whole.
  const TensorView* scale16 = nullptr;
  float global = 1;
  const TensorView* scale_of_parts = nullptr;  // GGUF: `global` of each expert, or one for all
  const TensorView* input_scale = nullptr;     // of activations, likewise

  void decode(int64_t r, float* out) const;
  // Whether fp4() is this row; its codes and scales.
  bool is_fp4() const { return scale16 != nullptr || view->dtype == DType::NVFP4; }
  void fp4(int64_t r, std::byte* codes, std::byte* scales) const;
  // Of block (i, j) of 128 × 128, or the one scale.
  float fp8_scale(int64_t i, int64_t j) const;
};

float scale_at(const TensorView& t, int64_t i) {
  float v = 0;
  if (t.dtype == DType::F32)
    decode_row(DType::F32, t.bytes.data() + 4 * i, 1, &v);
  else
    decode_row(DType::BF16, t.bytes.data() + 2 * i, 1, &v);
  return v;
}

void Rows::decode(int64_t r, float* out) const {
  const std::byte* from = data + r * stride;
  if (scale16 != nullptr) {
    const std::byte* scales = scale16->bytes.data() + r * (k / 16);
    for (int64_t i = 0; i < k; ++i) {
      const auto byte = static_cast<uint32_t>(from[i / 2]);
      const float s = quant::e4m3_to_float(static_cast<uint8_t>(scales[i / 16])) * global;
      out[i] = s * quant::e2m1_to_float(i % 2 ? byte >> 4 : byte & 15u);
    }
    return;
  }
  decode_row(view->dtype, from, k, out);
  if (global != 1) {
    for (int64_t i = 0; i < k; ++i) out[i] *= global;
  }
  if (scale == nullptr) return;
  for (int64_t b = 0; b * 128 < k; ++b) {
    const float s = fp8_scale(r / 128, b);
    for (int64_t i = 128 * b; i < std::min(k, 128 * (b + 1)); ++i) out[i] *= s;
  }
}

float Rows::fp8_scale(int64_t i, int64_t j) const {
  return scale_at(*scale, scale_cols > 0 ? i * scale_cols + j : 0);
}

void Rows::fp4(int64_t r, std::byte* codes, std::byte* scales) const {
  const std::byte* from = data + r * stride;
  if (scale16 != nullptr) {
    std::memcpy(codes, from, static_cast<size_t>(k / 2));
    std::memcpy(scales, scale16->bytes.data() + r * (k / 16), static_cast<size_t>(k / 16));
    return;
  }
  blocks_to_fp4_row(from, k, codes, scales);
}

class Lister {
 public:
  Lister(Checkpoint& checkpoint, const Config& config) : checkpoint_(checkpoint), c_(config) {}

  void add(const ListedTensor& listed) {
    const std::string& name = listed.name;
    if (listed.group == TensorGroup::Constant) return;
    if (name.ends_with(".experts.gate_up_proj")) return add_gate_up(listed);
    if (name.ends_with(".experts.down_proj"))
      return add_experts(listed, name.substr(0, name.rfind('.') + 1), "down_proj", c_.d_model, c_.d_expert);
    if (listed.group == TensorGroup::Table) return add_table(listed);
    if ((name == "mtp.fc_embedding.weight" || name == "mtp.fc_hidden.weight") &&
        checkpoint_.find("mtp.eh_proj.weight"))
      return add_half(listed, name == "mtp.fc_hidden.weight");
    // Some GGUF files leave the draft's mixer out: it is the trunk's.
    const bool borrowed = checkpoint_.kind() == Checkpoint::Kind::Gguf && !checkpoint_.find(name) &&
                          name.starts_with("mtp.hyper_connection_mixer.");
    const TensorView& view = checkpoint_.take(borrowed ? name.substr(4) : name);
    const int64_t k =
        listed.shape.size() == 3 && listed.shape[1] == 1 ? listed.shape[2] : listed.shape.back();
    std::vector<int64_t> stored = listed.shape;
    if (view.dtype == DType::U8) stored.back() /= 2;
    check_shape(view, stored);
    int64_t n = 1;
    for (const int64_t d : listed.shape) n *= d;
    push(listed, name, listed.shape, {matrix(view, n / k, k)}, n / k);
    // ModelOpt's scales for keys and values in FP8, which no output has.
    for (const auto& [matrix, scale] :
         {std::pair("k_proj.weight", "k_scale"), {"v_proj.weight", "v_scale"}}) {
      if (name.ends_with(matrix)) checkpoint_.take_if(name.substr(0, name.size() - 6) + scale, {1});
    }
  }

  std::vector<SourceTensor> list;

 private:
  void check_shape(const TensorView& t, const std::vector<int64_t>& shape) {
    if (squeezed(t.shape) != squeezed(shape))
      throw Error(fmt::format("{}: expected shape {}, found {}", checkpoint_.where(t), shape_text(shape),
                              t.shape_text()));
  }

  // What a file says of activations: one number, or one for each expert.
  const TensorView* input_scale(const std::string& name) {
    const TensorView* t = checkpoint_.take_if(name);
    if (t != nullptr && (t->dtype != DType::F32 || (t->elements() != 1 && t->elements() != c_.n_experts)))
      throw Error(fmt::format("{}: expected 1 or {} F32 scales, found {} {}", checkpoint_.where(*t),
                              c_.n_experts, quern::name(t->dtype), t->shape_text()));
    return t;
  }

  // The matrix and whatever scales lie beside it.
  Rows matrix(const TensorView& t, int64_t n, int64_t k) {
    Rows rows;
    rows.view = &t;
    rows.n = n;
    rows.k = k;
    rows.data = t.bytes.data();
    const std::string stem = t.name.ends_with(".weight") ? t.name : t.name + ".weight";
    if (t.dtype == DType::U8) {  // ModelOpt's nibbles
      rows.stride = k / 2;
      rows.scale16 = &checkpoint_.take(stem + "_scale", {n, k / 16});
      if (rows.scale16->dtype != DType::F8E4M3)
        throw Error(fmt::format("{}: expected F8_E4M3 scales, found {}", checkpoint_.where(*rows.scale16),
                                name(rows.scale16->dtype)));
      const TensorView& global = checkpoint_.take(stem + "_scale_2", {});
      if (global.dtype != DType::F32)
        throw Error(fmt::format("{}: expected an F32 scale, found {}", checkpoint_.where(global),
                                name(global.dtype)));
      rows.global = scale_at(global, 0);
      rows.input_scale = input_scale(t.name.substr(0, t.name.size() - 7) + ".input_scale");
      return rows;
    }
    rows.stride = row_bytes(t.dtype, k);
    if (checkpoint_.kind() == Checkpoint::Kind::Gguf && t.name.ends_with(".weight")) {
      const std::string base = t.name.substr(0, t.name.size() - 6);
      rows.input_scale = input_scale(base + "input_scale");
      if (const TensorView* one = checkpoint_.take_if(base + "scale")) {
        if (one->dtype != DType::F32)
          throw Error(
              fmt::format("{}: expected F32 scales, found {}", checkpoint_.where(*one), name(one->dtype)));
        rows.global = scale_at(*one, 0);
        rows.scale_of_parts = one;
      }
    }
    if (t.dtype == DType::F8E4M3) {
      rows.scale = checkpoint_.take_if(stem + "_scale", {1});  // ModelOpt's FP8: one for the matrix
      if (rows.scale == nullptr) {
        rows.scale_cols = (k + 127) / 128;
        rows.scale = &checkpoint_.take(stem + "_scale_inv", {(n + 127) / 128, rows.scale_cols});
      } else {
        checkpoint_.take_if(t.name.substr(0, t.name.size() - 7) + ".input_scale");
      }
      if (rows.scale->dtype != DType::F32 && rows.scale->dtype != DType::BF16)
        throw Error(fmt::format("{}: expected F32 or BF16 scales, found {}", checkpoint_.where(*rows.scale),
                                name(rows.scale->dtype)));
    }
    if (t.dtype == DType::I64 || t.dtype == DType::I32)
      throw Error(
          fmt::format("{}: expected numbers of a weight, found {}", checkpoint_.where(t), name(t.dtype)));
    return rows;
  }

  float expert_scale(const Rows& all, int64_t e) const {
    const TensorView* scale = all.scale_of_parts;
    if (scale == nullptr || scale->elements() == 1) return all.global;
    if (scale->elements() != c_.n_experts)
      throw Error(fmt::format("{}: expected 1 or {} scales, found {}", checkpoint_.where(*scale),
                              c_.n_experts, scale->shape_text()));
    return scale_at(*scale, e);
  }

  static Fp4Form fp4_form(const std::shared_ptr<const std::vector<Rows>>& parts, int64_t per_part) {
    Fp4Form f;
    f.row = [parts, per_part](int64_t r, std::byte* codes, std::byte* scales) {
      (*parts)[static_cast<size_t>(r / per_part)].fp4(r % per_part, codes, scales);
    };
    for (size_t i = 0; i < parts->size(); ++i) {
      const Rows& p = (*parts)[i];
      f.factors.push_back(p.global);
      if (p.input_scale != nullptr)
        f.inputs.push_back(
            scale_at(*p.input_scale, p.input_scale->elements() == 1 ? 0 : static_cast<int64_t>(i)));
    }
    if (f.inputs.size() != f.factors.size()) f.inputs.clear();
    return f;
  }

  // One tensor whose rows come from parts of `per_part` rows each.
  void push(const ListedTensor& listed, std::string name, std::vector<int64_t> shape, std::vector<Rows> parts,
            int64_t per_part) {
    SourceTensor t;
    t.name = std::move(name);
    t.shape = std::move(shape);
    t.group = listed.group;
    t.dtype = parts[0].view->dtype;
    t.form = parts[0].view->form;
    for (const Rows& p : parts) {
      if (p.view->dtype != t.dtype)
        throw Error(fmt::format("{}: expected {} as its neighbours, found {}", checkpoint_.where(*p.view),
                                quern::name(t.dtype), quern::name(p.view->dtype)));
      t.self_contained = t.self_contained && p.scale == nullptr && p.scale16 == nullptr &&
                         p.scale_of_parts == nullptr && !(p.is_fp4() && p.input_scale != nullptr);
    }
    const auto shared = std::make_shared<const std::vector<Rows>>(std::move(parts));
    if (shared->front().is_fp4()) t.fp4 = fp4_form(shared, per_part);
    if (t.dtype == DType::F8E4M3) {
      const bool wide = std::any_of(shared->begin(), shared->end(),
                                    [](const Rows& p) { return p.scale->dtype == DType::F32; });
      t.fp8 = {wide ? DType::F32 : DType::BF16, [shared](int64_t part, int64_t i, int64_t j) {
                 return (*shared)[static_cast<size_t>(part)].fp8_scale(i, j);
               }};
    }
    t.row = [shared, per_part](int64_t r) {
      const Rows& p = (*shared)[static_cast<size_t>(r / per_part)];
      return p.data + r % per_part * p.stride;
    };
    t.decode = [shared, per_part](int64_t r, float* out) {
      (*shared)[static_cast<size_t>(r / per_part)].decode(r % per_part, out);
    };
    t.drop_pages = [this_checkpoint = &checkpoint_] { this_checkpoint->drop_pages(); };
    list.push_back(std::move(t));
  }

  void add_gate_up(const ListedTensor& listed) {
    const std::string stem = listed.name.substr(0, listed.name.rfind('.') + 1);
    const TensorView* fused = checkpoint_.take_if(listed.name, {c_.n_experts, 2 * c_.d_expert, c_.d_model});
    if (fused == nullptr)
      fused = checkpoint_.take_if(listed.name + ".weight", {c_.n_experts, 2 * c_.d_expert, c_.d_model});
    for (const int half : {0, 1}) {
      const char* which = half == 0 ? "gate_proj" : "up_proj";
      if (fused == nullptr) {
        add_experts(listed, stem, which, c_.d_expert, c_.d_model);
        continue;
      }
      std::vector<Rows> parts;
      const Rows whole = matrix(*fused, int64_t{2} * c_.n_experts * c_.d_expert, c_.d_model);
      for (int64_t e = 0; e < c_.n_experts; ++e) {
        Rows p = whole;
        p.data += (2 * e + half) * c_.d_expert * whole.stride;
        p.global = expert_scale(whole, e);
        parts.push_back(p);
      }
      push(listed, stem + which, {c_.n_experts, c_.d_expert, c_.d_model}, std::move(parts), c_.d_expert);
    }
  }

  Rows expert(const std::string& name, int64_t n, int64_t k) {
    const TensorView& t = checkpoint_.take(name);
    check_shape(t, {n, t.dtype == DType::U8 ? k / 2 : k});
    return matrix(t, n, k);
  }

  // [E, n, k] in one piece, or an expert at a time.
  void add_experts(const ListedTensor& listed, const std::string& stem, const std::string& which, int64_t n,
                   int64_t k) {
    const TensorView* whole = checkpoint_.take_if(stem + which, {c_.n_experts, n, k});
    if (whole == nullptr) whole = checkpoint_.take_if(stem + which + ".weight", {c_.n_experts, n, k});
    std::vector<Rows> parts;
    if (whole != nullptr) {
      const Rows all = matrix(*whole, c_.n_experts * n, k);
      for (int64_t e = 0; e < c_.n_experts; ++e) {
        Rows p = all;
        p.data += e * n * all.stride;
        p.global = expert_scale(all, e);
        parts.push_back(p);
      }
    } else {
      if (checkpoint_.kind() == Checkpoint::Kind::Gguf)
        checkpoint_.take(stem + which + ".weight");  // throws: GGUF knows no other layout
      for (int64_t e = 0; e < c_.n_experts; ++e)
        parts.push_back(expert(fmt::format("{}{}.{}.weight", stem, e, which), n, k));
    }
    push(listed, stem + which, {c_.n_experts, n, k}, std::move(parts), n);
  }

  void add_table(const ListedTensor& listed) {
    const std::string stem = listed.name.substr(0, listed.name.size() - 7);
    std::vector<Rows> parts;
    const TensorView* scale = checkpoint_.take_if(stem + ".weight_scale", {1});
    for (const TensorView* view : checkpoint_.take_rows(stem, listed.shape[0], listed.shape[1])) {
      Rows p;
      p.view = view;
      p.n = view->shape[0];
      p.k = listed.shape[1];
      p.data = view->bytes.data();
      p.stride = row_bytes(view->dtype, p.k);
      if (view->dtype == DType::F8E4M3) {
        if (scale == nullptr) checkpoint_.take(stem + ".weight_scale");  // throws: it is missing
        p.scale = scale;
      }
      parts.push_back(p);
    }
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i].n != parts[0].n)
        throw Error(fmt::format("{}: expected {} rows as the part before, found {}",
                                checkpoint_.where(*parts[i].view), parts[0].n, parts[i].n));
    }
    const int64_t per_part = parts[0].n;
    push(listed, listed.name, listed.shape, std::move(parts), per_part);
  }

  // One half of the columns of eh_proj.
  void add_half(const ListedTensor& listed, bool second) {
    const TensorView& view = checkpoint_.take("mtp.eh_proj.weight", {c_.d_model, 2 * c_.d_model});
    Rows rows = matrix(view, c_.d_model, c_.d_model);
    if (c_.d_model % dtype_info(view.dtype).block != 0)
      throw Error(
          fmt::format("{}: {} blocks straddle its two halves", checkpoint_.where(view), name(view.dtype)));
    rows.stride = row_bytes(view.dtype, 2 * c_.d_model);
    if (second) rows.data += row_bytes(view.dtype, c_.d_model);
    push(listed, listed.name, listed.shape, {rows}, c_.d_model);
  }

  Checkpoint& checkpoint_;
  const Config& c_;
};

}  // namespace

int64_t SourceTensor::n_rows() const {
  int64_t n = 1;
  for (size_t d = 0; d + 1 < shape.size(); ++d) n *= shape[d];
  return n;
}

std::vector<SourceTensor> source_tensors(Checkpoint& checkpoint, const Config& config) {
  Config c = config;
  if (checkpoint.find("mtp.fc_hidden.weight") == nullptr && checkpoint.find("mtp.eh_proj.weight") == nullptr)
    c.mtp_layers = 0;
  Lister lister(checkpoint, c);
  for (const ListedTensor& t : list_tensors(c)) lister.add(t);
  return std::move(lister.list);
}

}  // namespace quern
