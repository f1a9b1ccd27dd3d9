// Writes a GGUF file (checkpoint/gguf.h): keys first, then tensors whose bytes stream through.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/gguf.h"
#include "checkpoint/tensor_export.h"

namespace quern {

// Metadata on its way into a file.
class GgufKeys {
 public:
  void u32(std::string_view key, int64_t value);
  void i32(std::string_view key, int64_t value);
  void u16(std::string_view key, int64_t value);
  void f32(std::string_view key, double value);
  void boolean(std::string_view key, bool value);
  void text(std::string_view key, std::string_view value);
  void i32s(std::string_view key, std::span<const int64_t> values);
  void u64s(std::string_view key, std::span<const int64_t> values);
  void texts(std::string_view key, std::span<const std::string> values);
  // A value read from another file.
  void copy(std::string_view key, const GgufValue& value);

  int64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void start(std::string_view key, GgufType type);
  void value(const GgufValue& v);
  std::string bytes_;
  int64_t count_ = 0;
};

// `path` appears when all is written. Throws Error naming it.
void write_gguf(const std::filesystem::path& path, const GgufKeys& keys,
                const std::vector<ExportTensor>& tensors, ThreadPool& pool, const Progress& progress = {});

}  // namespace quern
