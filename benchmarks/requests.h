// The questions that a benchmark's driver asks the ranks of a contender.
//
// All contenders of a benchmark run at once and wait, each rank reading a pipe
// of its own, so that asking them in turn costs no start and a measurement of
// one is followed at once by the other's. Rank 0 answers each question with a
// line of JSON on its standard output.
//
// Threads: single-threaded.
// Errors:  std::runtime_error when the pipe cannot be opened.
#pragma once

#include <fstream>
#include <optional>
#include <string>

namespace lockstep {

class Requests {
 public:
  // Rank `rank` reads the file `prefix`.`rank`.
  Requests(const std::string& prefix, int rank);

  // The next question; nothing when the driver has no more.
  std::optional<std::string> next();

 private:
  std::ifstream pipe_;
};

}  // namespace lockstep
