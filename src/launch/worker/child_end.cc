#include "src/launch/worker/child_end.h"

#include <sys/wait.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/signals_blocked.h"
#include "src/net/pipe.h"
#include "src/net/process_handle.h"

namespace lockstep {
namespace {

// Closes `end` when `child` has ended; does not reap the child.
void close_at_end_of(pid_t child, FileDescriptor end) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT) !=
             0 &&
         errno == EINTR)
    continue;
  end.reset();
}

}  // namespace

ChildEnd::ChildEnd(pid_t child) {
  try {
    end_ = open_process(child);
  } catch (const SystemError& error) {
    if (!means_no_pidfds(error.error_number())) throw;
    Pipe pipe = make_pipe();
    end_ = std::move(pipe.read);
    const SignalsBlocked blocked;
    watch_ = std::thread([child, end = std::move(pipe.write)]() mutable {
      close_at_end_of(child, std::move(end));
    });
  }
}

ChildEnd::~ChildEnd() {
  if (watch_.joinable()) watch_.join();
}

}  // namespace lockstep
