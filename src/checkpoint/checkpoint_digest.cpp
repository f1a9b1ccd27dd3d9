#include "checkpoint/checkpoint_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace quern {
namespace {

// Where `bytes` lie in the file, or -1: assembled in memory from several tensors of the file.
int64_t offset_in(const MappedFile& file, std::span<const std::byte> bytes) {
  const std::byte* begin = file.bytes().data();
  const std::byte* end = begin + file.bytes().size();
  return bytes.data() >= begin && bytes.data() <= end ? bytes.data() - begin : -1;
}

void add_stretches(Hasher& hasher, std::span<const std::byte> data) {
  const auto size = static_cast<int64_t>(data.size());
  if (size <= kDigestStretches * kDigestStretch) return hasher.add(data.data(), data.size());
  for (int64_t i = 0; i < kDigestStretches; ++i)
    hasher.add(data.data() + (size - kDigestStretch) * i / (kDigestStretches - 1), kDigestStretch);
}

}  // namespace

Digest sampled_digest(const Checkpoint& checkpoint) {
  Hasher hasher;
  hasher.add(fmt::format("kind {}\nconfig {}\n", static_cast<int>(checkpoint.kind()),
                         write_json(checkpoint.config())));

  const auto& files = checkpoint.files();
  std::vector<int64_t> first(files.size(), INT64_MAX);  // tensor byte of each file
  std::string tensors;
  for (const TensorView& t : checkpoint.tensors()) {
    const int64_t offset = offset_in(*files[t.file], t.bytes);
    if (offset >= 0) first[t.file] = std::min(first[t.file], offset);
    tensors += fmt::format("tensor {} {} {} {} {} {} {}\n", t.name, name(t.dtype), static_cast<int>(t.form),
                           t.shape_text(), t.file, offset, t.bytes.size());
  }
  for (size_t i = 0; i < files.size(); ++i) {
    const auto bytes = files[i]->bytes();
    const auto head = std::min(static_cast<size_t>(first[i]), bytes.size());
    hasher.add(fmt::format("file {} {}\n", bytes.size(), head));
    hasher.add(bytes.data(), head);
    add_stretches(hasher, bytes.subspan(head));
  }
  hasher.add(tensors);
  return hasher.digest();
}

Digest checkpoint_digest(const Checkpoint& checkpoint) {
  Hasher hasher;
  hasher.add(hex(sampled_digest(checkpoint)));
  for (const auto& file : checkpoint.files())
    hasher.add(fmt::format("{} {}\n", file->modified_ns(), file->changed_ns()));
  return hasher.digest();
}

}  // namespace quern
