#include "lockstep/base/error.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <system_error>

namespace lockstep {

namespace {

// The user's next step; empty when it depends on the failed action.
std::string next_step(int error_number) {
  if (error_number == ENFILE)
    return "\n  next:    this host has reached its limit on open files: raise "
           "it (sysctl fs.file-max) or end the programs that hold files open";
  if (error_number != EMFILE) return "";
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return fmt::format(
      "\n  next:    this process has reached its limit of {} open files: "
      "raise it (ulimit -n) where the process is started",
      limit.rlim_cur);
}

}  // namespace

SystemError::SystemError(const std::string& what, int error_number)
    : Error(fmt::format("{}: {}{}", what,
                        std::generic_category().message(error_number),
                        next_step(error_number))),
      error_number_(error_number) {}

void fail_check(const char* file, int line, const char* condition,
                const std::string& detail) {
  throw InternalError(fmt::format(
      "internal error at {}:{}: {} does not hold ({})\n"
      "  next:    this is a bug in Lockstep; please report it with this text",
      file, line, condition, detail));
}

}  // namespace lockstep
