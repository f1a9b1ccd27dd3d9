#include "base/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "base/check.h"

namespace quern {

std::shared_ptr<const MappedFile> MappedFile::open(const std::filesystem::path& path) {
  // Without O_NONBLOCK a FIFO would be waited for; a regular file reads the same.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    throw Error(fmt::format("{}: {}", path.string(),
                            errno == ENOENT ? "no such file or folder" : std::strerror(errno)));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    throw Error(fmt::format("{}: not a regular file", path.string()));
  }
  std::shared_ptr<MappedFile> file(new MappedFile);
  file->path_ = path;
  file->size_ = static_cast<size_t>(info.st_size);
  file->modified_ns_ = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  file->changed_ns_ = int64_t{info.st_ctim.tv_sec} * 1'000'000'000 + info.st_ctim.tv_nsec;
  if (file->size_ > 0) {
    void* p = ::mmap(nullptr, file->size_, PROT_READ, MAP_SHARED, fd, 0);
    const int error = errno;
    ::close(fd);
    if (p == MAP_FAILED) {
      file->size_ = 0;
      throw Error(
          fmt::format("{}: cannot map {} bytes: {}", path.string(), info.st_size, std::strerror(error)));
    }
    file->data_ = static_cast<const std::byte*>(p);
  } else {
    ::close(fd);
  }
  return file;
}

MappedFile::~MappedFile() {
  if (size_ > 0) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::drop_pages() const {
  if (size_ > 0) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

void MappedFile::read_sparsely(std::span<const std::byte> part) const {
  QUERN_CHECK(part.data() >= data_ && part.data() + part.size() <= data_ + size_,
              "read_sparsely: not of this file");
  // Whole pages inside the part.
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page - 1) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(part.data() + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM);
}

std::string read_file(const std::filesystem::path& path, size_t max_bytes) {
  const auto file = MappedFile::open(path);
  const auto bytes = file->bytes();
  if (bytes.size() > max_bytes)
    throw Error(
        fmt::format("{}: expected at most {} bytes, found {}", path.string(), max_bytes, bytes.size()));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

namespace {

// What is left of fd.
std::string read_to_end(int fd, const std::string& name) {
  constexpr size_t kMostBytes = size_t{256} << 20;
  std::string text;
  std::array<char, 65536> piece;
  ssize_t n = 0;
  while (text.size() <= kMostBytes &&
         ((n = ::read(fd, piece.data(), piece.size())) > 0 || (n < 0 && errno == EINTR)))
    text.append(piece.data(), static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (n < 0) throw Error(fmt::format("{}: {}", name, std::strerror(errno)));
  if (text.size() > kMostBytes) throw Error(fmt::format("{}: expected at most {} bytes", name, kMostBytes));
  return text;
}

}  // namespace

std::string read_text(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd < 0 || ::fstat(fd, &info) != 0 || S_ISREG(info.st_mode) || S_ISDIR(info.st_mode)) {
    if (fd >= 0) ::close(fd);
    return read_file(path);  // which says what is wrong
  }
  try {
    std::string text = read_to_end(fd, path.string());
    ::close(fd);
    return text;
  } catch (...) {
    ::close(fd);
    throw;
  }
}

std::string read_standard_input() { return read_to_end(STDIN_FILENO, "standard input"); }

}  // namespace quern
