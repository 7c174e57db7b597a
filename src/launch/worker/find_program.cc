#include "src/launch/worker/find_program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep {
namespace {

// 0 when `file` can be executed, otherwise the reason as an errno value.
int why_not_executable(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return errno;
  if (!S_ISREG(status.st_mode)) return EACCES;
  return ::access(file.c_str(), X_OK) == 0 ? 0 : errno;
}

std::string hint_for(std::string_view name) {
  if (name.ends_with(".py"))
    return fmt::format(" (a Python program? then: python3 {})", name);
  if (name.find('/') == std::string_view::npos &&
      why_not_executable(std::string(name)) == 0)
    return fmt::format(" (the one in this folder is ./{})", name);
  return "";
}

}  // namespace

CannotExecute::CannotExecute(std::string_view name, int error_number)
    : SystemError(fmt::format("cannot start \"{}\"{}", name, hint_for(name)),
                  error_number) {}

int CannotExecute::exit_code() const {
  constexpr int kNotFound = 127;
  constexpr int kNotExecutable = 126;
  return error_number() == ENOENT ? kNotFound : kNotExecutable;
}

std::string find_program(std::string_view name, std::string_view path) {
  if (name.find('/') != std::string_view::npos) {
    const int error = why_not_executable(std::string(name));
    if (error != 0) throw CannotExecute(name, error);
    return std::string(name);
  }
  int error = ENOENT;
  while (!name.empty()) {
    const std::size_t end = path.find(':');
    const std::string_view folder = path.substr(0, end);
    std::string file =
        fmt::format("{}/{}", folder.empty() ? "." : folder, name);
    const int why = why_not_executable(file);
    if (why == 0) return file;
    if (why == EACCES) error = EACCES;
    if (end == std::string_view::npos) break;
    path.remove_prefix(end + 1);
  }
  throw CannotExecute(name, error);
}

}  // namespace lockstep
