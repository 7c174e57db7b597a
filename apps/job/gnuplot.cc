#include "apps/job/gnuplot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "lockstep/base/error.h"
#include "src/base/exit_status.h"
#include "src/launch/worker/find_program.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

// A file without a name that holds `text`, to be read from its beginning.
FileDescriptor file_with(std::string_view text) {
  FileDescriptor file(::memfd_create("gnuplot script", MFD_CLOEXEC));
  if (file.get() < 0)
    throw SystemError("cannot make a file for gnuplot's script", errno);
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw SystemError("cannot write gnuplot's script", errno);
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  if (::lseek(file.get(), 0, SEEK_SET) != 0)
    throw SystemError("cannot rewind gnuplot's script", errno);
  return file;
}

}  // namespace

std::string require_gnuplot(const EnvironmentLookup& lookup,
                            std::string_view flag) {
  try {
    return find_program("gnuplot", lookup("PATH").value_or(""));
  } catch (const CannotExecute&) {
    throw InvalidArgument(fmt::format(
        "{} needs gnuplot for its drawings: install it (apt-get install "
        "gnuplot-nox), or print the report with --json",
        flag));
  }
}

std::string gnuplot_text(std::string_view text) {
  std::string out = "'";
  for (const char letter : text) {
    const bool is_control = static_cast<unsigned char>(letter) < ' ';
    out += is_control ? ' ' : letter;
    if (letter == '\'') out += letter;
  }
  return out + "'";
}

void run_gnuplot(const std::string& gnuplot, std::string_view script) {
  const FileDescriptor file = file_with(script);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, file.get(), STDIN_FILENO);
  std::string name = gnuplot;
  const std::array<char*, 2> arguments{name.data(), nullptr};
  pid_t child = 0;
  const int failed = ::posix_spawn(&child, gnuplot.c_str(), &actions, nullptr,
                                   arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw SystemError("cannot start " + gnuplot, failed);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  const ExitStatus end = ExitStatus::of_wait(status);
  if (end.ended_well()) return;
  throw Error(
      fmt::format("{} {}, so the drawing is missing or incomplete\n"
                  "  next:    read its messages above",
                  gnuplot, describe(end)));
}

}  // namespace lockstep
