#include "lockstep/net/process_handle.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

FileDescriptor open_process(pid_t pid) {
  // glibc has pidfd_open only since 2.36, and there declares it in a way that
  // C++ cannot link.
  FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!process)
    throw SystemError(fmt::format("could not open a pidfd on process {}", pid),
                      errno);
  return process;
}

FileDescriptor open_own_process() { return open_process(::getpid()); }

bool has_exited(const FileDescriptor& process) {
  pollfd item{process.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1 && (item.revents & POLLIN) != 0;
}

}  // namespace lockstep
