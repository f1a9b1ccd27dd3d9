// A file that appears whole or not at all: written under "<path>.partial", which is locked, renamed on finish(), removed
// if the writer gives up. One that a killed process left is written over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace quern {

// Throws Error where `path` is empty or exists, as nothing is overwritten, or where `source`, which is read meanwhile,
// has the name under which it is written.
void check_output(const std::filesystem::path& path, const std::filesystem::path& source = {});

class OutputFile {
 public:
  // Throws Error naming the path; so do write and finish.
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  int64_t size() const { return size_; }  // bytes written so far
  void finish();

 private:
  std::filesystem::path path_, partial_;
  int fd_ = -1;
  int64_t size_ = 0;
};

// The same of a folder: files are written into partial(), which finish() renames. What an earlier, interrupted run left
// there is removed first.
class OutputFolder {
 public:
  explicit OutputFolder(std::filesystem::path path);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& partial() const { return partial_; }
  void finish();

 private:
  std::filesystem::path path_, partial_;
  int fd_ = -1;  // holds the lock
  bool finished_ = false;
};

}  // namespace quern
