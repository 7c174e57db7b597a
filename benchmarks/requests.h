// The questions that a benchmark's driver asks the ranks of a contender.
//
// All contenders of a benchmark run at once and wait, each rank reading a pipe
// of its own, so that asking them in turn costs no start and a measurement of
// one is followed at once by the other's. Rank 0 answers each question with a
// line of JSON on its standard output.
//
// And what ranks of several benchmarks make of their times and their memory.
//
// Threads: single-threaded.
// Errors:  std::runtime_error when the pipe, or a file of /proc, cannot be
// read.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace lockstep {

// Answers one question with a line of JSON.
using Answer = std::function<std::string(const std::string& request)>;

// Answers until the driver has no more. Rank `rank` reads the file
// `prefix`.`rank`; every rank computes the answer, and rank 0's is printed.
void answer_requests(const std::string& prefix, int rank, const Answer& answer);

// The middle one of `values`, of which there is one at least.
double median(std::vector<double> values);

// MiB of this process's part of the resident memory now (Pss).
double own_mib();

// MiB of this process's part of the resident memory at its peak: of what
// several processes map, each one's share as it is now.
double peak_mib();

}  // namespace lockstep
