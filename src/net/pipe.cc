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

}  // namespace lockstep
