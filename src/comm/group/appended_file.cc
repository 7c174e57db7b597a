#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/run_files.h"
#include "src/base/log.h"
#include "src/base/report_text.h"
#include "src/base/text_file.h"
#include "src/net/file_descriptor.h"
#include "src/net/file_lock.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string quoted(const fs::path& path) { return "\"" + path.string() + "\""; }

const char* next_step(int reason) {
  switch (reason) {
    case ENOENT:
    case ENOTDIR:
      return " (its folder must exist)";
    case EACCES:
    case EPERM:
    case EROFS:
      return " (this user must be able to read and write it; name another "
             "file)";
    case ENOSPC:
    case EDQUOT:
      return " (free space there, or name a file on another disk)";
    case EFBIG:
      return " (see `ulimit -f`)";
    case EEXIST:
      return " (move it away, or name another file)";
    default:
      return "";
  }
}

[[noreturn]] void fail_to_append(const fs::path& path, int reason) {
  throw SystemError("cannot write " + quoted(path) + next_step(reason), reason);
}

// open() follows no link, since another user may have made it, and does not
// wait for the other end of a pipe.
FileDescriptor open_regular_file(const fs::path& path, int flags) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW |
                         O_NONBLOCK | O_NOCTTY;
  constexpr mode_t kMode = 0666;
  FileDescriptor file(::open(path.c_str(), kFlags | flags, kMode));
  if (!file && errno == ELOOP)
    throw InvalidArgument(quoted(path) +
                          " is a symbolic link, which records are not written "
                          "through\n  next:    give the path that it leads to");
  if (!file) fail_to_append(path, errno);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_to_append(path, errno);
  if (!S_ISREG(status.st_mode))
    throw InvalidArgument(quoted(path) +
                          " is not a regular file, so records cannot be "
                          "appended to it\n  next:    name another file");
  return file;
}

[[noreturn]] void fail_to_lock(const fs::path& path, const FileDescriptor& file,
                               Deadline::Clock::duration waited) {
  const auto holder = lock_holder(file);
  const std::string name = !holder ? "a process of another host or container"
                           : *holder == ::getpid()
                               ? "another thread of this process"
                               : "process " + std::to_string(*holder);
  const std::string how = holder ? " (ps -p " + std::to_string(*holder) +
                                       "; kill -CONT " +
                                       std::to_string(*holder) + ")"
                                 : "";
  const double seconds = std::chrono::duration<double>(waited).count();
  throw Timeout(
      "appending to " + quoted(path) + " timed out after " +
      fixed_number(seconds, 1) +
      " s\n"
      "  missing: the file's lock, which " +
      name +
      " holds\n"
      "  likely:  that process is stopped, keeps the file locked for its own "
      "use, or waits for a slow disk\n"
      "  next:    continue or end that process" +
      how + ", or name another file");
}

// The file that has the name `path`, locked until the object ends.
class LockedFile {
 public:
  LockedFile(const fs::path& path, Deadline deadline);
  ~LockedFile() { unlock(); }
  LockedFile(const LockedFile&) = delete;
  LockedFile& operator=(const LockedFile&) = delete;

  bool ends_within_line() const;
  // Appends the whole text, or nothing.
  void append(std::string_view text);

 private:
  void lock(Deadline deadline);
  void unlock();
  void remove(off_t written) const;

  const fs::path& path_;
  FileDescriptor file_;
  off_t size_ = 0;  // when the lock was taken
};

LockedFile::LockedFile(const fs::path& path, Deadline deadline) : path_(path) {
  struct stat status {};
  do {
    file_ = open_regular_file(path_, 0);
    lock(deadline);
    if (::fstat(file_.get(), &status) != 0) fail_to_append(path_, errno);
  } while (status.st_nlink == 0);  // deleted during the wait
  size_ = status.st_size;
}

void LockedFile::lock(Deadline deadline) {
  const auto began = Deadline::Clock::now();
  if (lock_until(deadline, file_, quoted(path_)) == LockAttempt::kInUse)
    fail_to_lock(path_, file_, Deadline::Clock::now() - began);
}

// Closing alone would not unlock where a child was forked meanwhile.
void LockedFile::unlock() {
  if (file_) ::flock(file_.get(), LOCK_UN);
}

bool LockedFile::ends_within_line() const {
  if (size_ == 0) return false;
  char last = '\n';
  if (::pread(file_.get(), &last, 1, size_ - 1) < 0)
    fail_to_append(path_, errno);
  return last != '\n';
}

void LockedFile::append(std::string_view text) {
  if (exceeds_file_size_limit(static_cast<std::uint64_t>(size_) + text.size()))
    fail_to_append(path_, EFBIG);
  off_t written = 0;
  while (!text.empty()) {
    const ssize_t count = ::write(file_.get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      remove(written);
      fail_to_append(path_, reason);
    }
    written += count;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  // A file server may report only now that its disk is full.
  unlock();
  if (::close(file_.release()) != 0 && errno != EINTR)
    fail_to_append(path_, errno);
}

// Keeps what a program that does not lock the file has appended meanwhile. If
// the kernel refuses, append_line() ends the incomplete line.
void LockedFile::remove(off_t written) const {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0 || status.st_size != size_ + written)
    return;
  [[maybe_unused]] const int truncated = ::ftruncate(file_.get(), size_);
}

}  // namespace

AppendedFile::AppendedFile(const fs::path& path, Existing existing)
    : path_(fs::absolute(path)) {
  const FileDescriptor file =
      open_regular_file(path_, existing == Existing::kRefuse ? O_EXCL : 0);
  switch (try_to_lock(file, quoted(path_))) {
    case LockAttempt::kLocked:
      ::flock(file.get(), LOCK_UN);
      break;
    case LockAttempt::kInUse:
      break;
    case LockAttempt::kNoLocksHere:
      log(LogLevel::kWarn,
          "records of several processes in " + quoted(path_) +
              " may be incomplete, since its file system has no locks");
  }
}

void AppendedFile::append_line(std::string_view line, Deadline deadline) {
  LockedFile file(path_, deadline);
  std::string text;
  text.reserve(line.size() + 2);
  if (file.ends_within_line()) text += '\n';
  text += line;
  if (!line.ends_with('\n')) text += '\n';
  file.append(text);
}

void AppendedFile::append(std::string_view record, Deadline deadline) {
  LockedFile(path_, deadline).append(record);
}

}  // namespace lockstep
