#include "lockstep/base/error.h"

#include <fmt/format.h>

#include <system_error>

namespace lockstep {

SystemError::SystemError(const std::string& what, int error_number)
    : Error(fmt::format("{}: {}", what,
                        std::generic_category().message(error_number))),
      error_number_(error_number) {}

void fail_check(const char* file, int line, const char* condition,
                const std::string& detail) {
  throw InternalError(fmt::format(
      "internal error at {}:{}: {} does not hold ({})\n"
      "  next:    this is a bug in Lockstep; please report it with this text",
      file, line, condition, detail));
}

}  // namespace lockstep
