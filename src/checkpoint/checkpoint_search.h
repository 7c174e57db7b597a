// Finds a checkpoint that can be used, as one file or a set of shards.
//
// Only damage makes the search go on to an older one: a checkpoint that cannot
// be read now, or that a later version wrote, may be complete.
//
// Threads: any thread, except where a group is passed.
// Errors:  InvalidArgument where nothing can be used, naming what is damaged;
//          NewerCheckpoint; SystemError where something exists and cannot be
//          read.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/process_group.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/tensor_archive.h"

namespace lockstep {

// The label of the collectives that load one.
inline constexpr std::string_view kLoading = "loading a checkpoint";

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

// The same of what `read` could read, which throws InvalidArgument for damage.
// It goes on to another one where a running writer deletes a set meanwhile.
std::optional<FoundCheckpoint> find_newest_and_read(
    const CheckpointFolder& folder,
    const std::function<void(FoundCheckpoint&)>& read);

// The checkpoint at `path`, or the newest in the folder `path`.
std::optional<FoundCheckpoint> find_at(const std::filesystem::path& path,
                                       Damage& damage);

// Why a set cannot be used: its damage, or that a running writer has deleted
// it.
struct SetProblem {
  std::string damage{};
  bool is_gone = false;

  explicit operator bool() const { return is_gone || !damage.empty(); }
};

// Opens the set at `path` on every rank, on rank 0 maybe before; the ranks
// divide the reading of its shards. Returns what some rank found, the same on
// all. A collective. InvalidArgument where the ranks see different sets, and
// where one sees none, then with Error on ranks other than 0.
SetProblem open_set(ProcessGroup& group, const std::filesystem::path& path,
                    std::optional<CheckpointSet>& set);

// Whether a folder has files that are named like those of a set.
bool has_shards(const std::filesystem::path& folder);

// Empty for a folder that does not exist.
std::vector<std::filesystem::path> entries_of(
    const std::filesystem::path& folder);

}  // namespace lockstep
