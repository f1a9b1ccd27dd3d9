// A whole file mapped read-only. The mapping lives as long as any copy of the shared_ptr; pages are read on
// first touch and shared with every process that maps the same file, so a table used in place costs only the
// rows that are read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace quern {

class MappedFile {
 public:
  // Throws Error naming the path. An empty file gives an empty span.
  static std::shared_ptr<const MappedFile> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::filesystem::path& path() const { return path_; }
  // When it was opened, in ns: the last change of its content, and of its inode, which no program can set.
  int64_t modified_ns() const { return modified_ns_; }
  int64_t changed_ns() const { return changed_ns_; }

  // Advice to the kernel; contents do not change. drop_pages: what has been read counts as this process's memory no
  // more (it stays in the page cache, and is read again on the next touch). read_sparsely: of this part of bytes() few
  // pages will be touched, in no order: nothing is read ahead.
  void drop_pages() const;
  void read_sparsely(std::span<const std::byte> part) const;

 private:
  MappedFile() = default;
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  int64_t modified_ns_ = 0, changed_ns_ = 0;
};

// The whole file as a string; refuses files beyond `max_bytes`. Throws Error naming the path.
std::string read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);
// The same of what a user names as a text: also a pipe or /dev/stdin, read to its end, of at most 256 MiB.
std::string read_text(const std::filesystem::path& path);
std::string read_standard_input();  // the same of standard input, from where it stands

}  // namespace quern
