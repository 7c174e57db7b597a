#include "src/checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <string>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/file_lock.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

fs::path path_in(const fs::path& folder) { return folder / ".lock"; }

std::string text_of(const fs::path& folder) {
  return "the folder \"" + folder.string() + "\" with a file in it";
}

FileDescriptor open_lock(const fs::path& folder) {
  const fs::path path = path_in(folder);
  constexpr int kFlags = O_CLOEXEC | O_NOFOLLOW;
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | kFlags, 0666));
  if (file) return file;
  const int reason = errno;
  // Another user's file can be locked without write permission.
  if (reason == EACCES)
    file = FileDescriptor(::open(path.c_str(), O_RDONLY | kFlags));
  if (!file) throw SystemError("cannot lock " + text_of(folder), reason);
  return file;
}

std::string own_signature() {
  return "process " + std::to_string(::getpid()) + " on " + own_host_name();
}

// Only messages use it, so a full disk does not matter.
void sign(const FileDescriptor& file) {
  const std::string name = own_signature() + "\n";
  if (::ftruncate(file.get(), 0) == 0)
    (void)!::pwrite(file.get(), name.data(), name.size(), 0);
}

std::string signature_in(const FileDescriptor& file) {
  std::array<char, 300> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  const std::string all(
      text.data(), size > 0 ? static_cast<std::size_t>(size) : std::size_t{0});
  const std::string line = all.substr(0, all.find('\n'));
  return line.empty() ? "another process" : line;
}

// Whether this process has the lock's file open more than once. A process of
// another container may have the same number and host name.
bool is_open_twice(const fs::path& folder) {
  int times = 0;
  std::error_code error, ignored;
  fs::directory_iterator entry("/proc/self/fd", error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error))
    if (fs::equivalent(entry->path(), path_in(folder), ignored)) ++times;
  return times > 1;
}

[[noreturn]] void refuse(const fs::path& folder, const FileDescriptor& file) {
  const std::string owner = signature_in(file);
  const bool is_own = owner == own_signature() && is_open_twice(folder);
  throw InvalidArgument(
      "the folder \"" + folder.string() +
      "\" is in use: " + (is_own ? "this process" : owner) + " writes to it" +
      (is_own ? "\n  likely:  another CheckpointFolder of this program has it"
                "\n  next:    use that one, or destroy it first"
              : "\n  likely:  another run uses the same folder, or the "
                "previous run is still ending"
                "\n  next:    wait for that process, or name another folder"));
}

}  // namespace

FolderLock::FolderLock(const fs::path& folder, Deadline deadline)
    : file_(open_lock(folder)), owner_(::getpid()) {
  const LockAttempt attempt = lock_until(deadline, file_, text_of(folder));
  if (attempt == LockAttempt::kInUse) refuse(folder, file_);
  if (attempt == LockAttempt::kLocked)
    sign(file_);
  else
    log(LogLevel::kWarn, "two concurrent writers to \"" + folder.string() +
                             "\" would not be noticed, since its file system "
                             "has no locks");
}

FolderLock::~FolderLock() {
  if (file_ && owner_ == ::getpid()) ::flock(file_.get(), LOCK_UN);
}

bool FolderLock::is_of(const fs::path& folder) const {
  struct stat own {
  }, there{};
  return ::fstat(file_.get(), &own) == 0 &&
         ::stat(path_in(folder).c_str(), &there) == 0 &&
         own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

}  // namespace lockstep
