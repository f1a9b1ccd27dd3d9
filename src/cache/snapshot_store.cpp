#include "cache/snapshot_store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "ops/batch_view.h"

namespace quern {
namespace {

constexpr char kMagic[8] = {'Q', 'U', 'E', 'R', 'N', 'S', 'N', 'P'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kMaxFingerprint = 4096;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t fingerprint_bytes;
  uint64_t begin, position, page_bytes, snapshot_bytes, file_bytes;
  PrefixKey key, before;
  uint64_t checksum;  // XXH3-64 of everything before it
};
static_assert(sizeof(Header) == 96 && offsetof(Header, checksum) == 88, "the header has no holes");

// A FIFO of a snapshot's name is not waited for.
constexpr int kToRead = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

// A file descriptor that closes itself.
struct File {
  int fd = -1;
  explicit File(int descriptor) : fd(descriptor) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
};

bool read_all(int fd, void* to, int64_t bytes) {
  auto* p = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = ::read(fd, p, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    bytes -= n;
  }
  return true;
}

bool write_all(int fd, const void* from, int64_t bytes) {
  const auto* p = static_cast<const char*>(from);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, static_cast<size_t>(std::min<int64_t>(bytes, 1 << 30)));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    p += n;
    bytes -= n;
  }
  return true;
}

// What differs between two fingerprints, "<name> <value>" a line: the first line that does.
std::string difference(std::string_view theirs, std::string_view ours) {
  while (!theirs.empty() || !ours.empty()) {
    const auto a = theirs.substr(0, theirs.find('\n')), b = ours.substr(0, ours.find('\n'));
    if (a != b) return fmt::format("made with '{}', this is '{}'", a, b);
    theirs.remove_prefix(std::min(a.size() + 1, theirs.size()));
    ours.remove_prefix(std::min(b.size() + 1, ours.size()));
  }
  return "";
}

bool is_snapshot_name(const std::string& name) {
  return name.size() == 37 && name.ends_with(".snap") &&
         name.find_first_not_of("0123456789abcdef") == name.size() - 5;
}

}  // namespace

std::vector<PrefixKey> prefix_keys(std::span<const int32_t> ids) {
  std::vector<PrefixKey> keys;
  struct {
    PrefixKey before;
    int32_t ids[kPageTokens];
  } link = {};
  for (size_t i = 0; i + kPageTokens <= ids.size(); i += kPageTokens) {
    if (!keys.empty()) link.before = keys.back();
    std::copy_n(ids.begin() + static_cast<int64_t>(i), kPageTokens, link.ids);
    keys.push_back(digest_of(&link, sizeof link));
  }
  return keys;
}

SnapshotStore::SnapshotStore(const StoreOptions& options) : options_(options) {
  QUERN_CHECK(options.page_bytes > 0 && options.snapshot_bytes > 0, "a store of empty snapshots");
  QUERN_CHECK(static_cast<int64_t>(options.fingerprint.size()) <= kMaxFingerprint,
              "a fingerprint is at most 4096 bytes");
  scan();
  thread_ = std::thread([this] { work(); });
}

SnapshotStore::~SnapshotStore() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::string SnapshotStore::path(const PrefixKey& key) const {
  return options_.directory + "/" + hex(key) + ".snap";
}

void SnapshotStore::scan() {
  std::error_code error;
  std::filesystem::create_directories(options_.directory, error);
  if (!std::filesystem::is_directory(options_.directory, error) ||
      ::access(options_.directory.c_str(), R_OK | W_OK | X_OK) != 0)
    throw Error(fmt::format("snapshot directory {}: expected a directory that can be read and written",
                            options_.directory));
  std::vector<std::pair<std::filesystem::file_time_type, PrefixKey>> order;
  for (const auto& entry : std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string name = entry.path().filename().string();
    if (name.size() == 37 + 4 && name.ends_with(".new") && is_snapshot_name(name.substr(0, 37))) {
      ::unlink(entry.path().c_str());  // a write that did not end
      continue;
    }
    if (!is_snapshot_name(name)) continue;
    PrefixKey key{};
    if (const auto piece = read_header(name, key)) {
      pieces_.emplace(key, *piece);
      order.emplace_back(entry.last_write_time(error), key);
      bytes_ += piece->bytes;
    }
  }
  if (error) throw Error(fmt::format("snapshot directory {}: {}", options_.directory, error.message()));
  std::sort(order.begin(), order.end());
  for (const auto& [time, key] : order) pieces_.at(key).used = ++clock_;
  for (auto& [key, piece] : pieces_)
    if (const auto before = pieces_.find(piece.before); piece.begin > 0 && before != pieces_.end())
      ++before->second.children;
  shrink();
}

std::optional<SnapshotStore::Piece> SnapshotStore::read_header(const std::string& name,
                                                               PrefixKey& key) const {
  const std::string where = options_.directory + "/" + name;
  const auto skip = [&](std::string_view why) {
    log(LogLevel::Warn, "{}: skipped, {}", where, why);
    return std::nullopt;
  };
  const File file(::open(where.c_str(), kToRead));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0 || !S_ISREG(info.st_mode))
    return skip("not a regular file that can be read");
  Header h;
  if (!read_all(file.fd, &h, sizeof h)) return skip("shorter than a header");
  if (std::memcmp(h.magic, kMagic, sizeof kMagic) != 0) return skip("not a snapshot");
  if (h.version != kVersion)
    return skip(fmt::format("version {}, this program writes {}", h.version, kVersion));
  if (h.checksum != digest64_of(&h, offsetof(Header, checksum))) return skip("its header is damaged");
  if (h.file_bytes != static_cast<uint64_t>(info.st_size))
    return skip(fmt::format("{} bytes long, its header says {}", info.st_size, h.file_bytes));
  std::string fingerprint(std::min<uint64_t>(h.fingerprint_bytes, kMaxFingerprint), '\0');
  if (h.fingerprint_bytes > kMaxFingerprint ||
      !read_all(file.fd, fingerprint.data(), static_cast<int64_t>(fingerprint.size())))
    return skip("its fingerprint is damaged");
  if (fingerprint != options_.fingerprint) return skip(difference(fingerprint, options_.fingerprint));
  const uint64_t tokens = h.position - h.begin;
  if (h.page_bytes != static_cast<uint64_t>(options_.page_bytes) ||
      h.snapshot_bytes != static_cast<uint64_t>(options_.snapshot_bytes) || h.position <= h.begin ||
      h.position % kPageTokens != 0 || h.begin % kPageTokens != 0 || h.position > (1ULL << 40) ||
      h.file_bytes != sizeof h + fingerprint.size() + tokens * 4 + tokens / kPageTokens * h.page_bytes +
                          h.snapshot_bytes + 16)
    return skip("its lengths contradict one another");
  if (hex(h.key) + ".snap" != name) return skip("its name is not its key");
  key = h.key;
  return Piece{.begin = static_cast<int64_t>(h.begin),
               .position = static_cast<int64_t>(h.position),
               .bytes = static_cast<int64_t>(h.file_bytes),
               .before = h.before};
}

bool SnapshotStore::complete(const Piece& piece) const {
  const Piece* p = &piece;
  while (p->begin > 0) {
    const auto before = pieces_.find(p->before);
    if (before == pieces_.end() || before->second.position != p->begin) return false;
    p = &before->second;
  }
  return true;
}

int64_t SnapshotStore::find(std::span<const int32_t> ids, int64_t limit) {
  const int64_t most = std::min<int64_t>(static_cast<int64_t>(ids.size()), std::max<int64_t>(limit, 0));
  const std::lock_guard lock(mutex_);
  if (pieces_.empty()) return 0;
  const auto keys = prefix_keys(ids.first(static_cast<size_t>(most)));
  for (size_t i = keys.size(); i-- > 0;) {
    const auto it = pieces_.find(keys[i]);
    if (it != pieces_.end() && it->second.position == static_cast<int64_t>(i + 1) * kPageTokens &&
        complete(it->second))
      return it->second.position;
  }
  return 0;
}

bool SnapshotStore::put(std::span<const int32_t> ids, int64_t begin, std::vector<std::byte> pages,
                        std::shared_ptr<const Snapshot> snapshot) {
  const auto position = static_cast<int64_t>(ids.size());
  QUERN_CHECK(
      position > begin && position % kPageTokens == 0 && begin % kPageTokens == 0 &&
          static_cast<int64_t>(pages.size()) == (position - begin) / kPageTokens * options_.page_bytes &&
          static_cast<int64_t>(snapshot->bytes.size()) == options_.snapshot_bytes,
      "a piece of a prefix is whole pages and a snapshot");
  const auto keys = prefix_keys(ids);
  const PrefixKey key = keys.back();
  Piece piece{.begin = begin, .position = position};
  if (begin > 0) piece.before = keys[begin / kPageTokens - 1];
  piece.bytes = static_cast<int64_t>(sizeof(Header) + options_.fingerprint.size()) + (position - begin) * 4 +
                static_cast<int64_t>(pages.size()) + options_.snapshot_bytes + 16;
  const std::lock_guard lock(mutex_);
  if (pieces_.contains(key)) return true;
  if (queued_ + piece.bytes > options_.max_queued || piece.bytes > options_.budget) {
    ++dropped_;
    return false;
  }
  piece.used = ++clock_;
  if (begin > 0) {
    const auto before = pieces_.find(piece.before);
    if (before == pieces_.end()) return false;  // given up meanwhile: this piece alone is worth nothing
    ++before->second.children;
  }
  pieces_.emplace(key, piece);
  bytes_ += piece.bytes;
  queued_ += piece.bytes;
  shrink();
  jobs_.push_back([this, key, piece, ids = std::vector<int32_t>(ids.begin(), ids.end()),
                   pages = std::move(pages), snapshot = std::move(snapshot)] {
    write(key, piece, ids, pages, *snapshot);
    const std::lock_guard done(mutex_);
    queued_ -= piece.bytes;
  });
  wake_.notify_one();
  return true;
}

void SnapshotStore::write(const PrefixKey& key, const Piece& piece, const std::vector<int32_t>& ids,
                          const std::vector<std::byte>& pages, const Snapshot& snapshot) {
  {
    const std::lock_guard lock(mutex_);
    if (!pieces_.contains(key)) return;  // given up while it waited
  }
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof kMagic);
  h.version = kVersion;
  h.fingerprint_bytes = static_cast<uint32_t>(options_.fingerprint.size());
  h.begin = static_cast<uint64_t>(piece.begin);
  h.position = static_cast<uint64_t>(piece.position);
  h.page_bytes = static_cast<uint64_t>(options_.page_bytes);
  h.snapshot_bytes = static_cast<uint64_t>(options_.snapshot_bytes);
  h.file_bytes = static_cast<uint64_t>(piece.bytes);
  h.key = key;
  h.before = piece.before;
  h.checksum = digest64_of(&h, offsetof(Header, checksum));

  const std::string where = path(key), fresh = where + ".new";
  const File file(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  Hasher hasher;
  bool good = file.fd >= 0;
  const auto put_bytes = [&](const void* bytes, int64_t n) {
    hasher.add(bytes, static_cast<size_t>(n));
    good = good && write_all(file.fd, bytes, n);
  };
  put_bytes(&h, sizeof h);
  put_bytes(options_.fingerprint.data(), static_cast<int64_t>(options_.fingerprint.size()));
  put_bytes(ids.data() + piece.begin, (piece.position - piece.begin) * 4);
  put_bytes(pages.data(), static_cast<int64_t>(pages.size()));
  put_bytes(snapshot.bytes.data(), static_cast<int64_t>(snapshot.bytes.size()));
  const Digest sum = hasher.digest();
  good = good && write_all(file.fd, sum.data(), 16) && ::fdatasync(file.fd) == 0 &&
         ::rename(fresh.c_str(), where.c_str()) == 0;
  const std::lock_guard lock(mutex_);
  if (good && pieces_.contains(key)) return;
  if (!good) {
    log(LogLevel::Warn, "{}: not written: {}", where, std::strerror(errno));
    ++dropped_;
    ::unlink(fresh.c_str());
    forget(key);
  } else {
    ::unlink(where.c_str());  // given up while it was written
  }
}

bool SnapshotStore::read_piece(const PrefixKey& key, const Piece& piece, std::span<const int32_t> ids,
                               StoredPrefix& into) {
  const std::string where = path(key);
  PrefixKey in_header{};
  // The lengths that the allocations below follow are checked against the file here.
  const auto again = read_header(hex(key) + ".snap", in_header);
  if (!again) return false;
  const auto skip = [&](std::string_view why) {
    log(LogLevel::Warn, "{}: skipped, {}", where, why);
    return false;
  };
  if (again->begin != piece.begin || again->position != piece.position || again->before != piece.before)
    return skip("it changed since it was listed");
  const File file(::open(where.c_str(), kToRead));
  if (file.fd < 0) return skip("it cannot be read");
  Hasher hasher;
  bool good = true;
  const auto get = [&](void* to, int64_t n) {
    good = good && read_all(file.fd, to, n);
    if (good) hasher.add(to, static_cast<size_t>(n));
  };
  Header h;
  std::string fingerprint(options_.fingerprint.size(), '\0');
  std::vector<int32_t> stored(static_cast<size_t>(piece.position - piece.begin));
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->position = piece.position;
  snapshot->bytes.resize(static_cast<size_t>(options_.snapshot_bytes));
  get(&h, sizeof h);
  get(fingerprint.data(), static_cast<int64_t>(fingerprint.size()));
  get(stored.data(), static_cast<int64_t>(stored.size()) * 4);
  get(into.pages.data() + piece.begin / kPageTokens * options_.page_bytes,
      (piece.position - piece.begin) / kPageTokens * options_.page_bytes);
  get(snapshot->bytes.data(), options_.snapshot_bytes);
  const Digest sum = hasher.digest();
  Digest expected{};
  good = good && read_all(file.fd, expected.data(), 16);
  if (!good) return skip("shorter than it was");
  if (sum != expected) return skip("its checksum is wrong: the file is damaged");
  const auto part = ids.subspan(static_cast<size_t>(piece.begin), stored.size());
  if (!std::equal(stored.begin(), stored.end(), part.begin())) return skip("it holds other ids");
  if (piece.position == into.position) into.snapshot = std::move(snapshot);
  ::futimens(file.fd, nullptr);  // recency outlives the process
  return true;
}

std::optional<StoredPrefix> SnapshotStore::read(std::span<const int32_t> ids, int64_t position) {
  const auto keys = prefix_keys(ids.first(static_cast<size_t>(position)));
  std::vector<std::pair<PrefixKey, Piece>> chain;
  {
    const std::lock_guard lock(mutex_);
    for (int64_t at = position; at > 0; at = chain.back().second.begin) {
      const auto it = pieces_.find(keys[at / kPageTokens - 1]);
      if (it == pieces_.end()) return std::nullopt;
      it->second.used = ++clock_;
      chain.emplace_back(it->first, it->second);
    }
  }
  StoredPrefix prefix;
  prefix.position = position;
  // No larger than the files that the headers were checked against.
  prefix.pages.resize(static_cast<size_t>(position / kPageTokens * options_.page_bytes));
  for (const auto& [key, piece] : chain) {
    if (read_piece(key, piece, ids, prefix)) continue;
    const std::lock_guard lock(mutex_);
    forget(key);
    return std::nullopt;
  }
  return prefix;
}

void SnapshotStore::fetch(std::span<const int32_t> ids, int64_t position,
                          std::function<void(std::optional<StoredPrefix>)> done) {
  const std::lock_guard lock(mutex_);
  // Ahead of queued writes would be sooner, but a queued piece may be the one that is wanted.
  jobs_.push_back([this, position, ids = std::vector<int32_t>(ids.begin(), ids.begin() + position),
                   done = std::move(done)] { done(read(ids, position)); });
  wake_.notify_one();
}

void SnapshotStore::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return jobs_.empty() && !busy_; });
}

void SnapshotStore::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    busy_ = true;
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    busy_ = false;
    if (jobs_.empty()) idle_.notify_all();
  }
}

void SnapshotStore::forget(const PrefixKey& key) {
  std::vector<PrefixKey> gone = {key};
  while (!gone.empty()) {
    const PrefixKey k = gone.back();
    gone.pop_back();
    const auto it = pieces_.find(k);
    if (it == pieces_.end()) continue;
    if (it->second.children > 0)
      for (const auto& [other, piece] : pieces_)
        if (piece.begin > 0 && piece.before == k) gone.push_back(other);
    if (const auto before = pieces_.find(it->second.before); it->second.begin > 0 && before != pieces_.end())
      --before->second.children;
    bytes_ -= it->second.bytes;
    pieces_.erase(it);
  }
}

void SnapshotStore::shrink() {
  while (bytes_ > options_.budget) {
    auto oldest = pieces_.end();
    for (auto it = pieces_.begin(); it != pieces_.end(); ++it)
      if (it->second.children == 0 && (oldest == pieces_.end() || it->second.used < oldest->second.used))
        oldest = it;
    if (oldest == pieces_.end()) return;
    const PrefixKey key = oldest->first;
    ::unlink(path(key).c_str());
    forget(key);
  }
}

int64_t SnapshotStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

int64_t SnapshotStore::n_files() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(pieces_.size());
}

int64_t SnapshotStore::n_dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace quern
