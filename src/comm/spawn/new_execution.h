// spawn() without prepare_spawn(): each rank executes the program anew.
//
// LOCKSTEP_SPAWN tells such a process its rank, its descriptors and its parent.
// The kernel kills it when the thread that called spawn() ends.
//
// Threads: one execute_ranks() at a time in a process.
// Errors:  SystemError when the program cannot be executed.
#pragma once

#include <optional>

#include "src/comm/spawn/rank_watch.h"
#include "src/comm/spawn/spawn_request.h"

namespace lockstep::internal {

// Runs all ranks and returns the one to blame, if any failed.
std::optional<FailedRank> execute_ranks(const SpawnRequest& request);

// Whether this process was executed as a rank and has not run its function yet.
// True for one call only: that caller must run the function.
bool claim_executed_rank();

// In such a process: runs its function and ends the process.
[[noreturn]] void run_executed_rank();

}  // namespace lockstep::internal
