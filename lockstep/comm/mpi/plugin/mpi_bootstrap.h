// Tells all processes of the job what the first of them says.
//
// Threads: any; all processes call it, and in the same order.
// Errors:  MpiError.
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

constexpr std::size_t kMpiBootstrapBytes = 1024;

// Gives every process the text of world rank 0, of less than
// kMpiBootstrapBytes; false when `patience` ends before.
bool mpi_bootstrap(std::string& text, std::chrono::microseconds patience);

}  // namespace lockstep
