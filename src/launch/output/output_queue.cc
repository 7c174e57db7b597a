#include "src/launch/output/output_queue.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep {
namespace {

// A file must keep its offset, and a socket cannot be reopened.
bool can_be_opened_anew(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return false;
  return S_ISFIFO(status.st_mode) || ::isatty(descriptor) == 1;
}

bool ready_for_writing(int descriptor) {
  pollfd entry{.fd = descriptor, .events = POLLOUT, .revents = 0};
  return ::poll(&entry, 1, 0) > 0;
}

}  // namespace

OutputQueue::OutputQueue(int descriptor) : target_(descriptor) {
  if (!can_be_opened_anew(descriptor)) return;
  const std::string path = fmt::format("/proc/self/fd/{}", descriptor);
  own_ = FileDescriptor(
      ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (own_) target_ = own_.get();
}

void OutputQueue::add(std::string_view bytes) {
  if (error_ != 0) return;
  // Removes the written bytes at once when they are the larger part.
  if (written_ * 2 >= bytes_.size()) {
    bytes_.erase(0, written_);
    written_ = 0;
  }
  bytes_ += bytes;
}

void OutputQueue::flush() {
  while (!empty() && ready_for_writing(target_))
    if (!write_some()) return;
}

bool OutputQueue::write_some() {
  // When the target could not be reopened, a write after poll() of at most this
  // size does not block on a pipe.
  constexpr std::size_t kAtOnce = 4096;
  const std::size_t left = bytes_.size() - written_;
  const std::size_t count = own_ ? left : std::min(left, kAtOnce);
  const ssize_t written = ::write(target_, bytes_.data() + written_, count);
  if (written >= 0) {
    written_ += static_cast<std::size_t>(written);
    return true;
  }
  if (errno == EINTR) return true;
  if (errno == EAGAIN) return false;
  error_ = errno;
  bytes_.clear();
  written_ = 0;
  return false;
}

}  // namespace lockstep
