// What the launcher says about a worker that did not end well.
#pragma once

#include <deque>
#include <string>

#include "lockstep/launch/worker_process.h"

namespace lockstep {

struct WorkerFailure {
  int rank = 0;
  int workers = 1;
  pid_t pid = 0;
  ExitStatus status;
  double seconds = 0;  // from the job's start
  std::string program;
  std::deque<std::string> last_lines;  // as LineTail keeps them
  bool lines_in_sight = false;         // the user has just seen them
  std::string log_path = {};           // its log, if there is one
  std::string record_folder = {};      // of the ranks' records, if any
};

// Who, how, when; its last lines; the likely cause and the next step. Several
// lines, without a newline at the end.
std::string describe(const WorkerFailure& failure);

}  // namespace lockstep
