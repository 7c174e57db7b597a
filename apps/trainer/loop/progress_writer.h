// Writes a training program's progress records; a slow reader hardly delays
// training.
//
// Threads: single-threaded.
// Errors:  none. Records for a reader that is gone or does not read are
//          dropped; the run continues. The first drop logs a warning.
#pragma once

#include <chrono>

#include "lockstep/base/deadline.h"
#include "src/base/progress_record.h"

namespace lockstep {

struct ProgressWriterOptions {
  // Step records that come sooner than this after the last one are dropped.
  std::chrono::milliseconds interval{100};
  // How long each other record may wait for the reader; they are few.
  std::chrono::milliseconds timeout{1000};
};

class ProgressWriter {
 public:
  // Writes to `descriptor`, a pipe or socket that the caller keeps open. The
  // process must ignore SIGPIPE.
  explicit ProgressWriter(int descriptor,
                          const ProgressWriterOptions& options = {});

  void write(const ProgressRecord& record);

 private:
  // Whether the reader has room before `deadline`.
  bool writable(Deadline deadline) const;

  int descriptor_;
  ProgressWriterOptions options_;
  Deadline next_step_{Deadline::Clock::duration::zero()};
  bool reader_gone_ = false;
};

}  // namespace lockstep
