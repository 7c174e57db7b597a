#include "src/net/process_handle.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

// glibc has pidfd_open only since 2.36, and declares it in a way that C++
// cannot link.
FileDescriptor try_to_open(pid_t pid) {
  return FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

// The pipe that represents this process when pidfds are unavailable. Never
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
  // Aligned like one number; otherwise clang uses libatomic, with a lock.
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

  // The child is another process and creates its own pipe if it needs one.
  static void in_child() {
    const Ends parents = of_process().ends_.exchange({});
    if (parents.write < 0) return;
    ::close(parents.read);
    ::close(parents.write);
  }

  std::atomic<Ends> ends_{Ends{}};
  static_assert(decltype(ends_)::is_always_lock_free, "a child uses it");
};

// The text after the last `before` in the first line that contains it.
std::string text_after(const std::string& path, const std::string& before) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (const std::size_t place = line.rfind(before);
        place != std::string::npos)
      return line.substr(place + before.size());
  return "";
}

// The pid behind a pidfd; not positive for a reaped process, for a process in
// another pid namespace and for a pipe.
pid_t number_of(const FileDescriptor& process) {
  return std::atoi(
      text_after(fmt::format("/proc/self/fdinfo/{}", process.get()), "Pid:")
          .c_str());
}

// Whether the process belongs to this user: to other users the kernel reports 0
// instead of the status.
bool is_ours(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 &&
         (::geteuid() == 0 || status.st_uid == ::geteuid());
}

// The last field of /proc/PID/stat: the status that the parent will receive
// (proc(5)).
std::optional<int> status_of_unreaped(const FileDescriptor& process) {
  const pid_t pid = number_of(process);
  if (pid <= 0) return {};
  std::istringstream fields(
      text_after(fmt::format("/proc/{}/stat", pid), ") "));
  std::vector<std::string> all{std::istream_iterator<std::string>(fields), {}};
  // The pid has not changed, so the field belonged to that process.
  const bool is_told = is_ours(fmt::format("/proc/{}", pid));
  if (all.empty() || all[0] != "Z" || number_of(process) != pid) return {};
  const int status = std::atoi(all.back().c_str());
  if (status == 0 && !is_told) return {};
  return status;
}

// As in the first version of <linux/pidfd.h>, which is newer than the headers
// that Lockstep builds with.
struct PidfdInfo {
  std::uint64_t mask = 0;
  std::uint64_t control_group = 0;
  std::array<std::uint32_t, 11> ids{};
  std::int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64, "the kernel knows it by its size");

// For a process that was reaped while a pidfd was open; Linux 6.15 and later.
std::optional<int> status_of_reaped(const FileDescriptor& process) {
  constexpr std::uint64_t kExit = 1 << 3;
  PidfdInfo info{.mask = kExit};
  if (::ioctl(process.get(), _IOWR(0xff, 11, PidfdInfo), &info) != 0 ||
      (info.mask & kExit) == 0)
    return {};
  return info.exit_code;
}

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

std::shared_ptr<const FileDescriptor> shared_handle(FileDescriptor process) {
  static Mutex mutex;
  static std::map<pid_t, std::weak_ptr<const FileDescriptor>>& held =
      *new std::map<pid_t, std::weak_ptr<const FileDescriptor>>;
  auto own = std::make_shared<const FileDescriptor>(std::move(process));
  const pid_t pid = number_of(*own);
  if (pid <= 0) return own;
  const MutexLock lock(mutex);
  std::erase_if(held, [](const auto& each) { return each.second.expired(); });
  auto& entry = held[pid];
  // While that process lives, no other one has its pid.
  auto before = entry.lock();
  if (before && !has_exited(*before)) return before;
  entry = own;
  return own;
}

bool has_exited(const FileDescriptor& process) {
  pollfd item{process.get(), POLLIN, 0};
  return ::poll(&item, 1, 0) == 1 && (item.revents & (POLLIN | POLLHUP)) != 0;
}

std::optional<ExitStatus> exit_status_of(const FileDescriptor& process) {
  if (!has_exited(process)) return {};
  std::optional<int> status = status_of_unreaped(process);
  if (!status) status = status_of_reaped(process);
  if (!status) return {};
  return ExitStatus::of_wait(*status);
}

}  // namespace lockstep
