#include "src/net/pipe.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/base/error.h"

namespace lockstep {

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw SystemError("could not make a pipe", errno);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

void make_nonblocking(const FileDescriptor& end) {
  ::fcntl(end.get(), F_SETFL, O_NONBLOCK);
}

bool read_once(FileDescriptor& pipe,
               const std::function<void(std::string_view)>& take) {
  constexpr std::size_t kReadBytes = 64 * 1024;
  std::array<char, kReadBytes> buffer;
  const ssize_t count = ::read(pipe.get(), buffer.data(), buffer.size());
  if (count > 0) {
    take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
    return true;
  }
  if (count == 0 || (errno != EAGAIN && errno != EINTR)) pipe.reset();
  return false;
}

}  // namespace lockstep
