#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quern {

void check_output(const std::filesystem::path& path) {
  if (path.empty()) throw Error("OUT: expected a path, found an empty one");
  std::error_code failed;
  const auto status = std::filesystem::symlink_status(path, failed);
  if (std::filesystem::exists(status)) throw Error(fmt::format("{}: exists already", path.string()));
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) throw Error(fmt::format("{}: cannot write: {}", partial_.string(), std::strerror(errno)));
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(partial_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), std::min(bytes.size(), size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      throw Error(
          fmt::format("{}: cannot write after {} bytes: {}", partial_.string(), size_, std::strerror(errno)));
    size_ += n;
    bytes = bytes.subspan(static_cast<size_t>(n));
  }
}

void OutputFile::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void OutputFile::finish() {
  QUERN_CHECK(fd_ >= 0, "finish() twice");
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) {
    const int error = errno;
    ::unlink(partial_.c_str());
    throw Error(fmt::format("{}: cannot write: {}", partial_.string(), std::strerror(error)));
  }
  std::error_code failed;
  std::filesystem::rename(partial_, path_, failed);
  if (failed)
    throw Error(
        fmt::format("{}: cannot rename to '{}': {}", partial_.string(), path_.string(), failed.message()));
}

OutputFolder::OutputFolder(std::filesystem::path path)
    : path_((path / "").lexically_normal().parent_path()), partial_(path_) {  // without a slash at the end
  partial_ += ".partial";
  std::error_code failed;
  std::filesystem::remove_all(partial_, failed);
  if (!failed) std::filesystem::create_directories(partial_, failed);
  if (failed) throw Error(fmt::format("{}: {}", partial_.string(), failed.message()));
}

OutputFolder::~OutputFolder() {
  std::error_code failed;
  if (!finished_) std::filesystem::remove_all(partial_, failed);
}

void OutputFolder::finish() {
  std::error_code failed;
  std::filesystem::rename(partial_, path_, failed);
  if (failed)
    throw Error(
        fmt::format("{}: cannot rename to '{}': {}", partial_.string(), path_.string(), failed.message()));
  finished_ = true;
}

}  // namespace quern
