// A sharded checkpoint: a folder with a file for each rank that wrote it, and a
// manifest. This is the reading side; shard_writer.h writes.
//
// The constructor reads the manifest and the headers of the shards, so each
// reader can then read only the ranges of elements that it needs, whatever
// number of ranks wrote them. See docs/formats/checkpoint.md.
//
// Threads: any thread; an object changes nothing after its construction.
// Errors:  InvalidArgument naming the file where it is missing, was cut short
//          or changed, or belongs to another checkpoint; NewerCheckpoint;
//          SystemError where a file exists and cannot be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/checkpoint/checkpoint_manifest.h"
#include "src/checkpoint/safetensors.h"

namespace lockstep {

// A tensor of the set. `parts` are in order and cover all its elements.
struct ShardedTensor {
  struct Part {
    std::size_t shard = 0;
    std::uint64_t begin = 0;     // first element
    std::uint64_t elements = 0;  // at least 1
    std::uint64_t offset = 0;    // of its bytes in the shard's file
  };

  SafetensorsType type = SafetensorsType::kF32;
  std::vector<std::int64_t> shape{};
  std::vector<std::int64_t> order{};  // as in ShardedPart
  std::vector<Part> parts{};

  std::uint64_t elements() const;
};

class CheckpointSet {
 public:
  // Whether there is a folder with a manifest at `path`. SystemError where that
  // cannot be known: it may be complete.
  static bool is_at(const std::filesystem::path& path);

  // Whether reading the set at `path` failed with `error` because a running
  // writer deleted it: then a newer one exists. SystemError as above.
  static bool is_gone(const std::filesystem::path& path,
                      const SystemError& error);

  // Checks everything except the shards' checksums.
  explicit CheckpointSet(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  const CheckpointManifest& manifest() const { return manifest_; }
  const std::map<std::string, ShardedTensor>& tensors() const {
    return tensors_;
  }
  bool contains(const std::string& name) const {
    return tensors_.contains(name);
  }

  // Reads a shard to its end, and compares its checksum with the manifest's.
  void check_shard(std::size_t shard) const;
  // All of them, one after the other.
  void check_shards() const;

  // Reads elements from number `begin` on, as many as `to` has room for.
  void read(const std::string& name, std::uint64_t begin,
            std::span<std::byte> to) const;

 private:
  void add_shard(std::size_t shard);
  void check_tensors();

  std::filesystem::path path_;
  CheckpointManifest manifest_;
  std::map<std::string, ShardedTensor> tensors_;
};

// Replaces the file at `to` by the same checkpoint in one file. Reads blocks,
// and in whole only tensors that are not stored row-major. Checks all shards
// first.
void merge_checkpoint(const CheckpointSet& set,
                      const std::filesystem::path& to);

}  // namespace lockstep
