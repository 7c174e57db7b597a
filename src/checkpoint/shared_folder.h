// Whether the ranks of a group see the same folder.
//
// Two hosts may have different folders of one name, so each check looks for a
// name that rank 0 has just drawn.
//
// Threads: a collective where a group is passed.
// Errors:  InvalidArgument naming the rank that does not see the folder, and on
//          the other ranks Error quoting it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Throws InvalidArgument: `problem`, that the hosts share no file system, and
// what to do.
[[noreturn]] void refuse_unshared(const std::string& problem);

// Throws where this rank, `rank`, does not see `path`, which rank 0 has made.
void check_seen(const std::filesystem::path& path, int rank);

// Sends rank 0's path to all ranks; empty for none.
std::filesystem::path share_path(ProcessGroup& group,
                                 const std::filesystem::path& own,
                                 std::string_view label);

// Throws on every rank unless all see what rank 0 writes into `folder`. Rank 0
// calls it after CheckpointFolder::prepare().
void check_shared(ProcessGroup& group, const std::filesystem::path& folder);

}  // namespace lockstep
