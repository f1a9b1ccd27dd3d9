#include "checkpoint/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace quern {

namespace {

// Beside the path, without a slash at its end.
std::filesystem::path partial_of(const std::filesystem::path& path) {
  std::filesystem::path partial = (path / "").lexically_normal().parent_path();
  partial += ".partial";
  return partial;
}

}  // namespace

void check_output(const std::filesystem::path& path, const std::filesystem::path& source) {
  if (path.empty()) throw Error("OUT: expected a path, found an empty one");
  std::error_code failed;
  const auto status = std::filesystem::symlink_status(path, failed);
  if (std::filesystem::exists(status)) throw Error(fmt::format("{}: exists already", path.string()));
  if (std::filesystem::equivalent(partial_of(path), source, failed))
    throw Error(fmt::format("{}: expected another name: {} is written under this one until it is whole",
                            source.string(), path.string()));
}

namespace {

// Whether the open file or folder is this process's alone. The lock ends with the descriptor, so with the process too.
bool lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0; }

}  // namespace

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
  partial_ += ".partial";
  fd_ = ::open(partial_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw Error(fmt::format("{}: cannot write: {}", partial_.string(), std::strerror(errno)));
  if (!lock(fd_) || ::ftruncate(fd_, 0) != 0) {
    ::close(std::exchange(fd_, -1));
    throw Error(fmt::format("{}: another process writes it", partial_.string()));
  }
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::unlink(partial_.c_str());
  ::close(fd_);
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

// What the name stands for is on the disk before it has the name; the lock is held until then.
void OutputFile::finish() {
  QUERN_CHECK(fd_ >= 0, "finish() twice");
  if (::fdatasync(fd_) != 0 && errno != EINVAL)  // EINVAL: a kind of file that has no disk
    throw Error(fmt::format("{}: cannot write: {}", partial_.string(), std::strerror(errno)));
  std::error_code failed;
  std::filesystem::rename(partial_, path_, failed);
  if (failed)
    throw Error(
        fmt::format("{}: cannot rename to '{}': {}", partial_.string(), path_.string(), failed.message()));
  ::close(std::exchange(fd_, -1));
}

OutputFolder::OutputFolder(std::filesystem::path path)
    : path_((path / "").lexically_normal().parent_path()), partial_(partial_of(path)) {
  std::error_code failed;
  std::filesystem::create_directories(partial_, failed);
  if (!failed) fd_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd_ < 0)
    throw Error(fmt::format("{}: cannot write: {}", partial_.string(),
                            failed ? failed.message() : std::string(std::strerror(errno))));
  if (!lock(fd_)) {
    ::close(std::exchange(fd_, -1));
    throw Error(fmt::format("{}: another process writes it", partial_.string()));
  }
  for (const auto& entry : std::filesystem::directory_iterator(partial_))
    std::filesystem::remove_all(entry, failed);
}

OutputFolder::~OutputFolder() {
  std::error_code failed;
  if (!finished_) std::filesystem::remove_all(partial_, failed);
  ::close(fd_);
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
