// The manifest of a sharded checkpoint: the file that makes a folder of shards
// a complete checkpoint. And what a shard says about its own tensors.
//
// See docs/formats/checkpoint.md.
//
// Threads: any thread.
// Errors:  InvalidArgument naming the file, unless it is a whole, unchanged
//          manifest; NewerCheckpoint for one of a later version.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {

inline constexpr const char* kManifestName = "manifest.json";

// A later version of the library wrote the checkpoint: it may be complete, so
// an older one must not replace it.
class NewerCheckpoint : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Throws InvalidArgument for a checkpoint, or a file of one, that was cut short
// or changed.
[[noreturn]] void refuse_damaged(const std::string& file,
                                 const std::string& problem);
// Throws NewerCheckpoint; this program knows versions up to `known`.
[[noreturn]] void refuse_version(const std::string& file,
                                 const std::string& version, int known);

struct ShardFile {
  std::string file{};
  std::uint64_t bytes = 0;
  std::string checksum{};  // CRC-32 of the file's bytes, in hexadecimal digits
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ShardFile, file, bytes, checksum)

struct CheckpointManifest {
  int version = 1;
  std::int64_t step = 0;                       // of the run
  std::map<std::string, std::string> texts{};  // the checkpoint's metadata
  std::vector<ShardFile> shards{};             // by rank
  std::string checksum{};                      // of all of the above
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointManifest, version, step, texts,
                                   shards, checksum)

// The manifest's file, with the checksum that belongs to it. InvalidArgument
// for texts that are not UTF-8.
std::string to_text(CheckpointManifest manifest);
// `file` names it in errors.
CheckpointManifest parse_manifest(std::string_view text,
                                  const std::string& file);

// "shard-00003-of-00008.safetensors".
std::string shard_name(std::size_t rank, std::size_t ranks);

// Which part of a tensor a shard holds: as many elements as the shard's tensor
// of the same name has, from `begin` on. Elements are counted in the order in
// which they lie in memory: the dimensions `order` from the slowest to the
// fastest, or row-major where it is empty.
struct ShardedPart {
  std::vector<std::int64_t> shape{};  // of the whole tensor
  std::int64_t begin = 0;
  std::vector<std::int64_t> order{};

  bool operator==(const ShardedPart&) const = default;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ShardedPart, shape, begin, order)

// By name, of the tensors of a shard that are not whole or not row-major.
using ShardedParts = std::map<std::string, ShardedPart>;

// The metadata of a shard.
std::map<std::string, std::string> shard_metadata(const ShardedParts& parts,
                                                  std::int64_t step,
                                                  std::size_t rank);
// InvalidArgument naming `file` where the metadata is not that of the shard of
// this step and rank.
ShardedParts parse_shard_metadata(
    const std::map<std::string, std::string>& metadata, std::int64_t step,
    std::size_t rank, const std::string& file);

}  // namespace lockstep
