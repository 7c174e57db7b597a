// Sends a text of world rank 0 to all processes of the job.
//
// Threads: any thread; all processes make the calls in the same order.
// Errors:  MpiError.
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

constexpr std::size_t kMpiBootstrapBytes = 1024;

// Gives every process the text of world rank 0, shorter than
// kMpiBootstrapBytes; false if `timeout` ends first.
bool mpi_bootstrap(std::string& text, std::chrono::microseconds timeout);

}  // namespace lockstep
