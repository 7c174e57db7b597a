// Runs a test's ranks as threads of this process.
//
// Threads: call from one thread; the function given runs on `ranks` others.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Makes a group of `ranks` threads on `backend` over a store in memory, runs
// `body` on each and joins them. The first exception that a rank threw, other
// than the PeerFailures that it caused on its peers, is thrown again.
void run_ranks(const std::string& backend, int ranks,
               const std::function<void(std::shared_ptr<ProcessGroup>)>& body);

}  // namespace lockstep
