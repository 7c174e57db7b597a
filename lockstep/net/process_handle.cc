#include "lockstep/net/process_handle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "lockstep/base/error.h"
#include "lockstep/net/pipe.h"

namespace lockstep {
namespace {

// glibc has pidfd_open only since 2.36, and there declares it in a way that
// C++ cannot link.
FileDescriptor try_to_open(pid_t pid) {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// The pipe that stands for this process where there are no pidfds. Never
// destroyed: the write end must stay open until the kernel closes it.
class LifeLine {
 public:
  static LifeLine& of_process() {
    static LifeLine& line = *new LifeLine;
    return line;
  }

  FileDescriptor read_end() {
    if (ends_.load().write < 0) make();
    FileDescriptor copy(::fcntl(ends_.load().read, F_DUPFD_CLOEXEC, 0));
    if (!copy) throw SystemError("could not copy a pipe's descriptor", errno);
    return copy;
  }

 private:
  // Aligned as one number is: clang asks libatomic, and a lock, otherwise.
  struct alignas(2 * sizeof(int)) Ends {
    int read = -1;
    int write = -1;
  };

  LifeLine() { ::pthread_atfork(nullptr, nullptr, &in_child); }

  void make() {
    Pipe pipe = make_pipe();
    Ends none;
    // Another thread may have been quicker.
    if (!ends_.compare_exchange_strong(none,
                                       {pipe.read.get(), pipe.write.get()}))
      return;
    pipe.read.release();
    pipe.write.release();
  }

  // The child is another process, and has a pipe of its own if it needs one.
  static void in_child() {
    const Ends parents = of_process().ends_.exchange({});
    if (parents.write < 0) return;
    ::close(parents.read);
    ::close(parents.write);
  }

  std::atomic<Ends> ends_{Ends{}};
  static_assert(decltype(ends_)::is_always_lock_free, "a child uses it");
};

}  // namespace

FileDescriptor open_process(pid_t pid) {
  FileDescriptor process = try_to_open(pid);
  if (!process)
    throw SystemError(fmt::format("could not open a pidfd on process {}", pid),
                      errno);
  return process;
}

bool means_no_pidfds(int error_number) {
  return error_number == ENOSYS || error_number == EPERM ||
         error_number == EACCES;
}

FileDescriptor open_own_process() {
  if (FileDescriptor process = try_to_open(::getpid())) return process;
  if (means_no_pidfds(errno)) return LifeLine::of_process().read_end();
  throw SystemError("could not open a pidfd on this process", errno);
}

bool has_exited(const FileDescriptor& process) {
  pollfd item{process.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1 && (item.revents & (POLLIN | POLLHUP)) != 0;
}

}  // namespace lockstep
