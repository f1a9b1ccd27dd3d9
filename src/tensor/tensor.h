// A tensor is a view: pointer, dtype, shape, and the distance between rows. It owns nothing and is copied by
// value.
//
// The last dimension is contiguous. `row_stride` is the distance in elements between consecutive indices of
// the dimension before the last, so a column slice of a fused projection is a view too; dimensions further
// left are packed (index i of dimension 0 of a rank-3 tensor lies shape[1] · row_stride elements apart).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/dtype.h"

namespace quern {

struct Tensor {
  std::byte* data = nullptr;
  DType dtype = DType::F32;
  int rank = 0;
  std::array<int64_t, 4> shape{};  // the first `rank` entries count
  int64_t row_stride = 0;          // elements; = cols() unless this is a column slice

  Tensor() = default;
  Tensor(void* bytes, DType type, std::initializer_list<int64_t> dims)
      : data(static_cast<std::byte*>(bytes)), dtype(type) {
    QUERN_CHECK(dims.size() >= 1 && dims.size() <= 4, "tensor rank is 1 to 4");
    for (const int64_t d : dims) shape[rank++] = d;
    row_stride = shape[rank - 1];
  }

  explicit operator bool() const { return data != nullptr; }
  int64_t cols() const { return shape[rank - 1]; }
  // Product of all dimensions but the last.
  int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i + 1 < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t elements() const { return rows() * cols(); }
  bool packed() const { return row_stride == cols(); }
  int64_t bytes() const { return rows() * row_bytes(dtype, cols()); }  // of a packed tensor

  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  // Row i of the [rows(), cols()] matrix.
  template <typename T>
  T* row(int64_t i) const {
    return reinterpret_cast<T*>(data) + i * row_stride;
  }

  // Rows [begin, end) of a rank-2 tensor.
  Tensor slice_rows(int64_t begin, int64_t end) const {
    QUERN_CHECK(rank == 2 && 0 <= begin && begin <= end && end <= shape[0], "slice_rows out of range");
    Tensor t = *this;
    t.data += begin * row_bytes(dtype, row_stride);
    t.shape[0] = end - begin;
    return t;
  }
  // Columns [begin, end) of a rank-2 tensor of a plain type.
  Tensor slice_cols(int64_t begin, int64_t end) const {
    QUERN_CHECK(rank == 2 && 0 <= begin && begin <= end && end <= shape[1], "slice_cols out of range");
    Tensor t = *this;
    t.data += row_bytes(dtype, begin);
    t.shape[1] = end - begin;
    return t;
  }
  // Item i of a rank-3 or rank-4 tensor.
  Tensor item(int64_t i) const {
    QUERN_CHECK(rank >= 3 && 0 <= i && i < shape[0], "item out of range");
    Tensor t = *this;
    int64_t rows_below = 1;
    for (int d = 1; d + 1 < rank; ++d) rows_below *= shape[d];
    t.data += i * rows_below * row_bytes(dtype, row_stride);
    t.rank = rank - 1;
    for (int d = 0; d < t.rank; ++d) t.shape[d] = shape[d + 1];
    t.shape[t.rank] = 0;
    return t;
  }
  // The same packed elements under another shape.
  Tensor reshape(std::initializer_list<int64_t> dims) const {
    QUERN_CHECK(packed(), "reshape of a column slice");
    Tensor t(data, dtype, dims);
    QUERN_CHECK(t.elements() == elements(), "reshape changes the number of elements");
    return t;
  }
};

}  // namespace quern
