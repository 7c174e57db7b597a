// Runs a test's ranks as threads of this process.
//
// Threads: call from one thread; the function given runs on `ranks` others.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Makes a group of `ranks` threads on `backend` over a store in memory, runs
// `body` on each and joins them. Rethrows the first exception of a rank,
// ignoring the PeerFailures that it caused on its peers. Ranks of the backend
// "mpi" are processes: see testing/mpirun.h.
using RankBody = std::function<void(std::shared_ptr<ProcessGroup>)>;
void run_ranks(const std::string& backend, int ranks, const RankBody& body);

// The number of ranks that run_ranks() puts on the first of two hosts.
int ranks_of_first_host(int ranks);

// The same with rank r on a host called hosts[r], as `hybrid` sees it; by
// default, the first half of the ranks is on one host and the rest on another.
void run_ranks_on(const std::vector<std::string>& hosts,
                  const std::string& backend, const RankBody& body);

}  // namespace lockstep
