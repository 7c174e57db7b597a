// Writes a training program's progress records without ever making training
// wait for their reader.
//
// Threads: single-threaded.
// Errors:  none. A reader that is gone or does not read costs its records, not
//          the run; the first time a warning says so.
#pragma once

#include <chrono>

#include "lockstep/base/deadline.h"
#include "lockstep/base/progress_record.h"

namespace lockstep {

struct ProgressWriterOptions {
  // Step records that come sooner than this after the last one are left out.
  std::chrono::milliseconds interval{100};
  // How long one of the other records, which are few, may wait for the reader.
  std::chrono::milliseconds patience{1000};
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
