#include "apps/trainer/loop/progress_writer.h"

#include <poll.h>

#include <cerrno>
#include <string>
#include <variant>

#include "lockstep/base/error.h"
#include "src/base/log.h"

namespace lockstep {

ProgressWriter::ProgressWriter(int descriptor,
                               const ProgressWriterOptions& options)
    : descriptor_(descriptor), options_(options) {}

void ProgressWriter::write(const ProgressRecord& record) {
  using std::chrono::milliseconds;
  if (reader_gone_) return;
  const bool is_step = std::holds_alternative<StepRecord>(record);
  if (is_step && !next_step_.expired()) return;
  // A pipe that is writable takes PIPE_BUF bytes, more than a step's line.
  if (!writable(is_step ? milliseconds(0) : options_.timeout)) return;
  try {
    write_progress(descriptor_, record);
  } catch (const SystemError& error) {
    reader_gone_ = true;
    log(LogLevel::kWarn, std::string(error.what()) +
                             ": training continues without progress reports");
  }
  if (is_step) next_step_ = Deadline(options_.interval);
}

bool ProgressWriter::writable(Deadline deadline) const {
  pollfd request{descriptor_, POLLOUT, 0};
  for (;;) {
    const int ready = ::poll(&request, 1, deadline.poll_milliseconds());
    if (ready >= 0) return ready > 0;  // write() will report an error
    if (errno != EINTR) return true;
  }
}

}  // namespace lockstep
