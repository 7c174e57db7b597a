#include "lockstep/train/log/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

[[noreturn]] void fail_to_append(const std::filesystem::path& path,
                                 int reason) {
  throw SystemError("cannot write \"" + path.string() + "\"", reason);
}

}  // namespace

AppendedFile::AppendedFile(std::filesystem::path path, Existing existing)
    : path_(std::move(path)) {
  const int only_new = existing == Existing::kRefuse ? O_EXCL : 0;
  file_ = FileDescriptor(
      ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | only_new, 0666));
  if (!file_) fail_to_append(path_, errno);
  size_ = ::lseek(file_.get(), 0, SEEK_END);
  if (size_ < 0) fail_to_append(path_, errno);  // a pipe
}

bool AppendedFile::ends_within_line() const {
  char last = '\n';
  if (size_ > 0 && ::pread(file_.get(), &last, 1, size_ - 1) != 1)
    fail_to_append(path_, errno);
  return last != '\n';
}

void AppendedFile::append(std::string_view record) {
  off_t end = size_;
  while (!record.empty()) {
    const ssize_t count =
        ::pwrite(file_.get(), record.data(), record.size(), end);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      // If even this fails, the next record overwrites the part.
      if (end != size_ && ::ftruncate(file_.get(), size_) != 0) errno = 0;
      fail_to_append(path_, reason);
    }
    end += count;
    record.remove_prefix(static_cast<std::size_t>(count));
  }
  size_ = end;
}

}  // namespace lockstep
