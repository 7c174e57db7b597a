#include "src/base/main_function.h"

#include <fcntl.h>

#include <cstddef>
#include <cstdio>
#include <exception>

#include "lockstep/base/error.h"
#include "src/base/exit_codes.h"

namespace lockstep {

void open_standard_streams() {
  for (int number = 0; number < 3; ++number)
    if (::fcntl(number, F_GETFD) < 0) ::open("/dev/null", O_RDWR);
}

int run_main(int count, char** arguments,
             int (*run)(std::span<const char* const>)) {
  const auto fail = [](const std::exception& error, int code) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return code;
  };
  open_standard_streams();
  const auto size = static_cast<std::size_t>(count);
  try {
    return run(std::span<const char* const>(arguments, size)
                   .subspan(size > 0 ? 1 : 0));
  } catch (const InvalidArgument& error) {
    return fail(error, kExitUsage);
  } catch (const std::exception& error) {
    return fail(error, kExitFailed);
  }
}

}  // namespace lockstep
