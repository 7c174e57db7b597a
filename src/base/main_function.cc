#include "src/base/main_function.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"

namespace lockstep {

void open_standard_streams() {
  for (int number = 0; number < 3; ++number)
    if (::fcntl(number, F_GETFD) < 0)
      ::open("/dev/null", number == STDOUT_FILENO ? O_RDONLY : O_RDWR);
}

void discard_closed_output() {
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) return;
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) return;
  ::dup2(nowhere, STDOUT_FILENO);
  ::close(nowhere);
}

namespace {

// A smaller stack would end the process by a signal that tells no cause, since
// buffers lie on it.
void check_stack() {
  constexpr rlim_t kLeast = rlim_t{256} << 10U;
  rlimit stack{};
  if (::getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= kLeast)
    return;
  throw Error(
      "the stack is limited to " + std::to_string(stack.rlim_cur / 1024) +
      " KiB (ulimit -s), but at least " + std::to_string(kLeast / 1024) +
      " are needed: raise the limit (ulimit -s 8192 is usual)");
}

}  // namespace

int run_main(int count, char** arguments,
             int (*run)(std::span<const char* const>)) {
  const auto fail = [](const std::exception& error, int code) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return code;
  };
  open_standard_streams();
  const auto size = static_cast<std::size_t>(count);
  try {
    check_stack();
    return run(std::span<const char* const>(arguments, size)
                   .subspan(size > 0 ? 1 : 0));
  } catch (const InvalidArgument& error) {
    return fail(error, kExitUsage);
  } catch (const std::exception& error) {
    return fail(error, kExitFailed);
  }
}

}  // namespace lockstep
