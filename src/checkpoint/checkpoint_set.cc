#include "src/checkpoint/checkpoint_set.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/checkpoint/checkpoint_checksum.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlockBytes = std::size_t{4} << 20;

// A running writer deletes a whole set, which is no damage.
[[noreturn]] void refuse_missing(const fs::path& shard) {
  if (CheckpointSet::is_at(shard.parent_path()))
    refuse_damaged(shard.string(), "it is missing");
  throw SystemError("cannot read \"" + shard.string() + "\"", ENOENT);
}

// A file of the set, open for reading.
class ShardReader {
 public:
  explicit ShardReader(fs::path path)
      : path_(std::move(path)),
        file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (!file_ && errno == ENOENT) refuse_missing(path_);
    if (!file_) fail();
  }

  void read(std::uint64_t offset, std::span<std::byte> to) const {
    while (!to.empty()) {
      const ssize_t count = ::pread(file_.get(), to.data(), to.size(),
                                    static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail();
      if (count == 0)
        refuse_damaged(path_.string(),
                       "it ends at byte " + std::to_string(offset));
      offset += static_cast<std::uint64_t>(count);
      to = to.subspan(static_cast<std::size_t>(count));
    }
  }

 private:
  [[noreturn]] void fail() const {
    const int reason = errno;
    throw SystemError("cannot read \"" + path_.string() + "\"", reason);
  }

  fs::path path_;
  FileDescriptor file_;
};

SafetensorsHeader read_shard_header(const fs::path& path) {
  try {
    return read_safetensors_header(path);
  } catch (const InvalidArgument& error) {
    refuse_damaged(path.string(), first_line(error.what()));
  }
}

CheckpointManifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const std::vector<std::byte> bytes = read_whole_file(path);
  return parse_manifest(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
      path.string());
}

// The row-major elements of a tensor that is stored in another order, from
// `stored`, all its elements in that order.
std::vector<std::byte> in_rows(const ShardedTensor& tensor,
                               const std::vector<std::byte>& stored) {
  const std::size_t size = size_of(tensor.type);
  const std::size_t dims = tensor.shape.size();
  std::vector<std::size_t> strides(dims);  // in `stored`
  std::size_t stride = size;
  for (std::size_t i = dims; i-- > 0;) {
    const auto dim = static_cast<std::size_t>(tensor.order[i]);
    strides[dim] = stride;
    stride *= static_cast<std::size_t>(tensor.shape[dim]);
  }
  std::vector<std::byte> rows(stored.size());
  std::vector<std::int64_t> index(dims, 0);
  std::size_t from = 0;
  for (std::size_t to = 0; to < rows.size(); to += size) {
    std::copy_n(&stored[from], size, &rows[to]);
    for (std::size_t dim = dims; dim-- > 0;) {
      from += strides[dim];
      if (++index[dim] < tensor.shape[dim]) break;
      from -= strides[dim] * static_cast<std::size_t>(tensor.shape[dim]);
      index[dim] = 0;
    }
  }
  return rows;
}

// Gives the row-major elements of a tensor to `sink`.
void stream_rows(const CheckpointSet& set, const std::string& name,
                 const ByteSink& sink) {
  const ShardedTensor& tensor = set.tensors().at(name);
  const std::size_t size = size_of(tensor.type);
  const std::uint64_t elements = tensor.elements();
  const bool by_rows = tensor.order.empty();
  const std::uint64_t block = by_rows ? kBlockBytes / size : elements;
  std::vector<std::byte> bytes(std::min(block, elements) * size);
  for (std::uint64_t begin = 0; begin < elements; begin += block) {
    const auto part =
        std::span(bytes).first(std::min(block, elements - begin) * size);
    set.read(name, begin, part);
    if (by_rows)
      sink(part);
    else
      sink(in_rows(tensor, bytes));
  }
}

}  // namespace

std::uint64_t ShardedTensor::elements() const {
  return product_of(shape).value();
}

bool CheckpointSet::is_at(const fs::path& path) {
  std::error_code error;
  const bool exists = fs::exists(path / kManifestName, error);
  if (error)
    throw SystemError("cannot read \"" + (path / kManifestName).string() + "\"",
                      error.value());
  return exists;
}

bool CheckpointSet::is_gone(const fs::path& path, const SystemError& error) {
  return error.error_number() == ENOENT && !is_at(path);
}

CheckpointSet::CheckpointSet(fs::path path)
    : path_(std::move(path)), manifest_(read_manifest(path_)) {
  for (std::size_t shard = 0; shard < manifest_.shards.size(); ++shard)
    add_shard(shard);
  check_tensors();
}

void CheckpointSet::add_shard(std::size_t shard) {
  const ShardFile& file = manifest_.shards[shard];
  const fs::path path = path_ / file.file;
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory) refuse_missing(path);
  if (!error && bytes != file.bytes)
    refuse_damaged(path.string(), "it has " + std::to_string(bytes) +
                                      " bytes, expected " +
                                      std::to_string(file.bytes));
  const SafetensorsHeader header = read_shard_header(path);
  const ShardedParts parts = parse_shard_metadata(
      header.metadata, manifest_.step, shard, path.string());
  for (const TensorPlace& place : header.tensors) {
    const auto found = parts.find(place.name);
    const ShardedPart part = found == parts.end()
                                 ? ShardedPart{.shape = place.shape}
                                 : found->second;
    ShardedTensor& tensor = tensors_[place.name];
    if (tensor.parts.empty())
      tensor = {.type = place.type, .shape = part.shape, .order = part.order};
    if (!product_of(part.shape) || tensor.type != place.type ||
        tensor.shape != part.shape || tensor.order != part.order)
      refuse_damaged(path.string(),
                     "its part of \"" + place.name +
                         "\" does not fit the parts in other shards");
    tensor.parts.push_back(
        {.shard = shard,
         .begin = static_cast<std::uint64_t>(part.begin),
         .elements = (place.end - place.begin) / size_of(place.type),
         .offset = place.begin});
  }
}

void CheckpointSet::check_tensors() {
  for (auto& [name, tensor] : tensors_) {
    auto& parts = tensor.parts;
    std::ranges::sort(parts, {}, &ShardedTensor::Part::begin);
    std::uint64_t next = 0;
    for (const auto& part : parts) {
      if (part.begin != next) break;
      next += part.elements;
    }
    if (next != tensor.elements() || (next == 0 && parts.size() != 1))
      refuse_damaged(path_.string(),
                     "the parts of \"" + name +
                         "\" in its shards do not make a whole tensor");
  }
}

void CheckpointSet::check_shard(std::size_t shard) const {
  const ShardFile& file = manifest_.shards[shard];
  const fs::path path = path_ / file.file;
  const ShardReader reader(path);
  CheckpointChecksum checksum;
  std::vector<std::byte> block(
      std::min<std::uint64_t>(kBlockBytes, file.bytes));
  for (std::uint64_t offset = 0; offset < file.bytes; offset += block.size()) {
    const auto part = std::span(block).first(
        std::min<std::uint64_t>(block.size(), file.bytes - offset));
    reader.read(offset, part);
    checksum.add(part);
  }
  if (checksum.hex() != file.checksum)
    refuse_damaged(path.string(), "its checksum is " + checksum.hex() +
                                      ", expected " + file.checksum);
}

void CheckpointSet::check_shards() const {
  for (std::size_t shard = 0; shard < manifest_.shards.size(); ++shard)
    check_shard(shard);
}

void CheckpointSet::read(const std::string& name, std::uint64_t begin,
                         std::span<std::byte> to) const {
  const ShardedTensor& tensor = tensors_.at(name);
  const std::uint64_t size = size_of(tensor.type);
  LOCKSTEP_CHECK(begin + to.size() / size <= tensor.elements(),
                 "elements that the tensor does not have");
  for (const auto& part : tensor.parts) {
    if (part.begin + part.elements <= begin) continue;
    if (to.empty()) return;
    const std::uint64_t skipped = begin - part.begin;
    const auto count = static_cast<std::size_t>(
        std::min<std::uint64_t>((part.elements - skipped) * size, to.size()));
    const fs::path path = path_ / manifest_.shards[part.shard].file;
    ShardReader(path).read(part.offset + skipped * size, to.first(count));
    if (tensor.type == SafetensorsType::kBool &&
        std::ranges::any_of(to.first(count),
                            [](std::byte b) { return b > std::byte{1}; }))
      refuse_damaged(path.string(),
                     "a BOOL of \"" + name + "\" is neither 0 nor 1");
    to = to.subspan(count);
    begin += count / size;
  }
}

void merge_checkpoint(const CheckpointSet& set, const fs::path& to) {
  prepare_to_replace(to);
  set.check_shards();
  SafetensorsMetadata metadata = set.manifest().texts;
  metadata[kCheckpointVersionKey] = std::to_string(kCheckpointVersion);
  // The checksum precedes the data in the file, so that all is read twice.
  CheckpointChecksum checksum;
  std::vector<TensorStream> streams;
  for (const auto& [name, tensor] : set.tensors()) {
    checksum.add_tensor(name, name_of(tensor.type), tensor.shape);
    stream_rows(set, name,
                [&](std::span<const std::byte> bytes) { checksum.add(bytes); });
    streams.push_back({name, tensor.type, tensor.shape,
                       [&set, &name = name](const ByteSink& sink) {
                         stream_rows(set, name, sink);
                       }});
  }
  checksum.add_texts(metadata);
  metadata[kCheckpointChecksumKey] = checksum.hex();
  replace_file(to, [&](const ByteSink& sink) {
    write_safetensors(sink, std::move(streams), metadata);
  });
}

}  // namespace lockstep
