#include "src/net/file_lock.h"

#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <chrono>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

bool means_no_locks(int reason) {
  return reason == EOPNOTSUPP || reason == ENOSYS || reason == ENOLCK;
}

}  // namespace

LockAttempt try_to_lock(const FileDescriptor& file, const std::string& name) {
  while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK) return LockAttempt::kInUse;
    if (means_no_locks(errno)) return LockAttempt::kNoLocksHere;
    throw SystemError("cannot lock " + name, errno);
  }
  return LockAttempt::kLocked;
}

LockAttempt lock_until(Deadline deadline, const FileDescriptor& file,
                       const std::string& name) {
  constexpr std::chrono::milliseconds kFirst{1};
  constexpr std::chrono::milliseconds kLongest{50};
  Backoff backoff(kFirst, kLongest);
  LockAttempt attempt{};
  do attempt = try_to_lock(file, name);
  while (attempt == LockAttempt::kInUse &&
         backoff.wait(deadline) != WaitResult::kTimedOut);
  return attempt;
}

// A line of /proc/locks: "7: FLOCK  ADVISORY  WRITE 4711 fe:00:1234 0 EOF".
// Numbers of processes that this one cannot see are not positive.
std::optional<pid_t> lock_holder(const FileDescriptor& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return std::nullopt;
  const std::string wanted =
      fmt::format("{:02x}:{:02x}:{}", major(status.st_dev),
                  minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  std::string line;
  while (std::getline(locks, line)) {
    std::istringstream fields(line);
    std::string number;
    std::string kind;
    std::string mode;
    std::string access;
    std::string inode;
    pid_t process = 0;
    fields >> number >> kind >> mode >> access >> process >> inode;
    if (kind == "FLOCK" && inode == wanted && process > 0) return process;
  }
  return std::nullopt;
}

}  // namespace lockstep
