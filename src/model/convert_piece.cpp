#include "model/convert_piece.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/wildcard.h"

namespace quern {
namespace {

// Where the target's value head `head` lies in the source, when one order is tiled and the other grouped.
int64_t source_head(const DeltaNetConfig& source, int64_t head) {
  const int64_t keys = source.n_key_heads, per_key = source.n_value_heads / source.n_key_heads;
  // Tiled source: grouped head g·R + r lies at r·K + g. Grouped source: tiled head r·K + g lies at g·R + r.
  return source.tiled_value_heads ? head % per_key * keys + head / per_key
                                  : head % keys * per_key + head / keys;
}

float plain_value(WeightForm form, float v) {
  switch (form) {
    case WeightForm::OnePlus:
      return v - 1;
    case WeightForm::NegExp:
      return static_cast<float>(std::log(-static_cast<double>(v)));
    default:
      return v;
  }
}
float stored_value(WeightForm form, float w) {
  switch (form) {
    case WeightForm::OnePlus:
      return 1 + w;
    case WeightForm::NegExp:
      return static_cast<float>(-std::exp(static_cast<double>(w)));
    default:
      return w;
  }
}

}  // namespace

bool is_plain(DType t) { return t == DType::F32 || t == DType::F16 || t == DType::BF16; }
bool is_vector(const SourceTensor& s) {
  return s.shape.size() == 1 || s.name.find("conv1d") != std::string::npos;
}

HeadMaps head_maps(const DeltaNetConfig& d, std::string_view name) {
  const auto by_head = [d](int64_t first, int64_t width) -> IndexMap {
    return [=](int64_t i) {
      return i < first ? i : first + source_head(d, (i - first) / width) * width + (i - first) % width;
    };
  };
  if (name.ends_with("linear_attn.in_proj_qkv.weight") || name.ends_with("linear_attn.conv1d.weight"))
    return {by_head(int64_t{2} * d.key_width(), d.d_value), {}};
  if (name.ends_with("linear_attn.in_proj_z.weight")) return {by_head(0, d.d_value), {}};
  if (name.ends_with("linear_attn.in_proj_a.weight") || name.ends_with("linear_attn.in_proj_b.weight"))
    return {by_head(0, 1), {}};
  if (name.ends_with("linear_attn.out_proj.weight")) return {{}, by_head(0, d.d_value)};
  if (name.ends_with("linear_attn.A_log") || name.ends_with("linear_attn.dt_bias"))
    return {{}, by_head(0, 1)};
  return {};
}

ExportTensor piece(const SourceTensor& s, std::string name, std::vector<int64_t> shape, DType dtype,
                   WeightForm form, const HeadMaps& maps, int64_t first) {
  ExportTensor t;
  t.name = std::move(name);
  t.shape = std::move(shape);
  t.dtype = dtype;
  const int64_t k = s.cols();
  const auto source_row = [maps, first](int64_t r) { return maps.rows ? maps.rows(first + r) : first + r; };
  if (s.self_contained && s.dtype == dtype && s.form == form && !maps.cols) {
    t.encoded = [&s, source_row, size = row_bytes(dtype, k)](int64_t begin, int64_t end, std::byte* out) {
      for (int64_t r = begin; r < end; ++r, out += size)
        std::memcpy(out, s.row(source_row(r)), static_cast<size_t>(size));
    };
    return t;
  }
  t.rows = [&s, source_row, maps, form, k](int64_t begin, int64_t end, float* out) {
    std::vector<float> row(static_cast<size_t>(maps.cols ? k : 0));
    for (int64_t r = begin; r < end; ++r, out += k) {
      s.decode(source_row(r), maps.cols ? row.data() : out);
      if (maps.cols) {
        for (int64_t i = 0; i < k; ++i) out[i] = row[static_cast<size_t>(maps.cols(i))];
      }
      if (s.form == form) continue;
      for (int64_t i = 0; i < k; ++i) out[i] = stored_value(form, plain_value(s.form, out[i]));
    }
  };
  return t;
}

Fp4Rows fp4_rows(const SourceTensor& s, const HeadMaps& maps, int64_t first) {
  if (!s.fp4) return {};
  const int64_t groups = s.cols() / 16;
  for (int64_t g = 0; maps.cols && g < groups; ++g) {
    if (maps.cols(16 * g) % 16 != 0 || maps.cols(16 * g + 15) != maps.cols(16 * g) + 15) return {};
  }
  const auto source_row = [maps, first](int64_t r) { return maps.rows ? maps.rows(first + r) : first + r; };
  if (!maps.cols)
    return [&s, source_row](int64_t r, std::byte* codes, std::byte* scales) {
      s.fp4->row(source_row(r), codes, scales);
    };
  return [&s, source_row, maps, groups](int64_t r, std::byte* codes, std::byte* scales) {
    std::vector<std::byte> row(static_cast<size_t>(9 * groups));
    s.fp4->row(source_row(r), row.data(), row.data() + 8 * groups);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t from = maps.cols(16 * g) / 16;
      std::memcpy(codes + 8 * g, row.data() + 8 * from, 8);
      scales[g] = row[static_cast<size_t>(8 * groups + from)];
    }
  };
}

DType Overrides::apply(DType type, const SourceTensor& source, std::string_view name) {
  for (size_t i = 0; i < list_.size(); ++i) {
    const auto& [pattern, wanted] = list_[i];
    if (!matches(pattern, name) || (is_vector(source) && !is_plain(wanted))) continue;
    type = wanted;
    taken_[i] = true;
  }
  return type;
}

void Overrides::check_all_taken() const {
  for (size_t i = 0; i < list_.size(); ++i) {
    if (!taken_[i])
      throw Error(fmt::format("--tensor {}={}: no tensor of this name takes this type", list_[i].first,
                              quern::name(list_[i].second)));
  }
}

float largest_magnitude(const float* x, int64_t n) {
  float top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::fabs(x[i]));
  return top;
}

ExportTensor scale_tensor(std::string name, DType dtype, std::vector<int64_t> shape,
                          std::shared_ptr<Lazy> scales) {
  ExportTensor t;
  t.name = std::move(name);
  t.dtype = dtype;
  t.shape = std::move(shape);
  t.rows = [scales, k = t.cols()](int64_t begin, int64_t end, float* out) {
    std::copy(scales->get().begin() + begin * k, scales->get().begin() + end * k, out);
  };
  return t;
}

ExportTensor scale_tensor(std::string name, DType dtype, std::vector<int64_t> shape,
                          std::vector<float> scales) {
  return scale_tensor(std::move(name), dtype, std::move(shape),
                      std::make_shared<Lazy>([scales = std::move(scales)] { return scales; }));
}

}  // namespace quern
