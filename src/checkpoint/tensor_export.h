// Tensors on their way into a file: what they will be called, how stored, and where the numbers come from.
// Memory stays bounded by a few pieces of rows, whatever the tensors' sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "tensor/dtype.h"

namespace quern {

struct ExportTensor {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  // outermost first
  // The numbers, one of:
  std::span<const std::byte> raw;  // the very bytes to write, which outlive the export
  std::vector<std::byte> owned;    // the same, small, kept here
  // Rows [begin, end) of the matrix [elements / cols, cols]. Called from several threads; must not throw.
  std::function<void(int64_t begin, int64_t end, float* out)> rows;
  std::function<void(int64_t begin, int64_t end, std::byte* out)>
      encoded;  // the same, as they will be stored

  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t elements() const;
  int64_t n_rows() const { return elements() / cols(); }
  int64_t bytes() const { return n_rows() * row_bytes(dtype, cols()); }
};

// The tensor cut by rows into `parts` of equal size but the last, named stem.shard_N.weight for a tensor named
// stem.weight. It must have `rows` or `encoded`.
std::vector<ExportTensor> split_rows(const ExportTensor& tensor, int64_t parts);

// Where the bytes of the tensors go, in order.
using ByteSink = std::function<void(std::span<const std::byte>)>;
// Told after each piece; for a progress bar.
using Progress = std::function<void(int64_t bytes_done, int64_t bytes_in_all)>;

// Encodes the tensors one after the other and hands their bytes to `begin`'s sink: begin(i) is called before
// the first byte of tensor i and returns where its bytes go.
void export_tensors(const std::vector<ExportTensor>& tensors, ThreadPool& pool,
                    const std::function<ByteSink(size_t)>& begin, const Progress& progress);

}  // namespace quern
