#include "lockstep/net/process_handle.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

FileDescriptor open_own_process() {
  // glibc has had pidfd_open only since 2.36.
  FileDescriptor process(
      static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!process)
    throw SystemError("could not open a pidfd on this process", errno);
  return process;
}

bool has_exited(const FileDescriptor& process) {
  pollfd item{process.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1 && (item.revents & POLLIN) != 0;
}

}  // namespace lockstep
