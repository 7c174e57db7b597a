// Tests under mpirun: ranks as processes of Open MPI.
//
// A test starts mpirun as a child (mpirun_command() through RankProcesses); in
// the processes of mpirun, run_ranks("mpi", …) gives each its rank.
//
// Threads: one thread at a time.
// Errors:  those of init_process_group.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// The reason why this machine cannot run MPI; "" if it can.
std::string why_no_mpirun();

// The command that starts `ranks` processes of `program`. Each line of output
// is tagged with its rank: "[1,2]<stdout>:…" is rank 2's.
std::vector<std::string> mpirun_command(
    int ranks, const std::vector<std::string>& program);

bool started_by_mpirun();

// run_ranks for one of the processes that mpirun started, which all call it in
// the same order: runs `body` if this is one of the first `ranks`.
void run_rank_of_mpirun(
    int ranks, const std::function<void(std::shared_ptr<ProcessGroup>)>& body);

}  // namespace lockstep
