// Finds a checkpoint that can be used, as one file or a set of shards.
//
// Only damage makes the search go on to an older one: a checkpoint that cannot
// be read now, or that a later version wrote, may be complete.
//
// Threads: any thread.
// Errors:  InvalidArgument where nothing can be used, naming what is damaged;
//          NewerCheckpoint; SystemError where something exists and cannot be
//          read.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/checkpoint.h"
#include "src/train/checkpoint/checkpoint_set.h"
#include "src/train/checkpoint/tensor_archive.h"

namespace lockstep {

// A checkpoint: a file's bytes and their contents, or a set whose shards are
// not read yet.
struct FoundCheckpoint {
  std::filesystem::path path{};
  SharedBytes bytes{};
  TensorArchive archive{};
  std::optional<CheckpointSet> set{};
};

// The damage of checkpoints, by path.
using Damage = std::map<std::filesystem::path, std::string>;

// Logs it, and adds it to `damage`.
void note_damage(const std::filesystem::path& path, const std::string& problem,
                 Damage& damage);

// The newest checkpoint of the folder that is not damaged; adds damaged ones to
// `damage`. The shards of a set are not read.
std::optional<FoundCheckpoint> find_newest(const CheckpointFolder& folder,
                                           Damage& damage);

// The checkpoint at `path`, or the newest in the folder `path`.
std::optional<FoundCheckpoint> find_at(const std::filesystem::path& path,
                                       Damage& damage);

// Empty for a folder that does not exist.
std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder);

}  // namespace lockstep
