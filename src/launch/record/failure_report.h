// The launcher's report on a failed worker.
#pragma once

#include <deque>
#include <optional>
#include <string>

#include "src/faults/root_cause.h"
#include "src/launch/record/oom_kills.h"
#include "src/launch/record/worker_exception.h"
#include "src/launch/worker/worker_process.h"

namespace lockstep {

struct WorkerFailure {
  int rank = 0;
  int workers = 1;
  EndKind kind = EndKind::kByItself;
  pid_t pid = 0;
  ExitStatus status;
  double seconds = 0;  // from the job's start
  std::string program = {};
  std::deque<std::string> last_lines = {};  // as LineTail keeps them
  bool has_error_lines = false;    // one of them went to standard error
  bool lines_in_sight = false;     // they are still on the user's screen
  std::string log_path = {};       // its log; empty: no log
  std::string record_folder = {};  // of the ranks' records; empty: none
  // How many processes the kernel killed for want of memory while the job ran;
  // nothing where the kernel does not count them.
  std::optional<OomKills> oom_kills = {};
  // What it recorded in TORCHELASTIC_ERROR_FILE.
  std::optional<WorkerException> exception = {};
};

// The worker and how it ended: "rank 3 exited with code 1".
std::string summary_of(const WorkerFailure& failure);

// The likely cause of its end, a sentence without a full stop; empty: unknown.
std::string likely_cause(const WorkerFailure& failure);

// The worker, how and when it ended, its last lines, the likely cause and the
// next step. Several lines, without a final newline.
std::string describe(const WorkerFailure& failure);

}  // namespace lockstep
