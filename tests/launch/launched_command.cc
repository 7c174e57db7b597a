#include "launched_command.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <utility>

#include "src/net/pipe.h"

namespace lockstep {
namespace {

Pipe make_terminal() {
  int master = -1;
  int slave = -1;
  winsize size{.ws_row = 24, .ws_col = 90, .ws_xpixel = 0, .ws_ypixel = 0};
  termios settings{};
  ::cfmakeraw(&settings);  // bytes pass unchanged
  if (::openpty(&master, &slave, nullptr, &settings, &size) != 0)
    throw std::runtime_error("no pseudo terminal to be had");
  ::fcntl(master, F_SETFD, FD_CLOEXEC);
  ::fcntl(slave, F_SETFD, FD_CLOEXEC);
  return {FileDescriptor(master), FileDescriptor(slave)};
}

// Appends the available bytes; closes the descriptor at the end.
void read_into(FileDescriptor& source, std::string& text) {
  std::array<char, 65536> buffer;
  const ssize_t count = ::read(source.get(), buffer.data(), buffer.size());
  if (count > 0)
    text.append(buffer.data(), static_cast<std::size_t>(count));
  else if (count == 0 || errno != EINTR)  // a terminal ends with EIO
    source.reset();
}

int occurrences(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t place = text.find(part); place != std::string::npos;
       place = text.find(part, place + part.size()))
    ++count;
  return count;
}

void set_variable(const std::string& variable) {
  const std::size_t equals = variable.find('=');
  ::setenv(variable.substr(0, equals).c_str(),
           variable.substr(equals + 1).c_str(), 1);
}

}  // namespace

Deadline LaunchedCommand::timeout() { return std::chrono::seconds(120); }

LaunchedCommand::LaunchedCommand(const std::vector<std::string>& arguments,
                                 const std::vector<std::string>& environment,
                                 Terminal terminal) {
  Pipe lifeline = make_pipe();
  Pipe out = terminal == Terminal::kPseudo ? make_terminal() : make_pipe();
  Pipe err = terminal == Terminal::kPseudo ? Pipe{} : make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    ::setsid();
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(out.write.get(), 1);
    if (terminal == Terminal::kPseudo) ::ioctl(1, TIOCSCTTY, 0);
    ::dup2(err.write ? err.write.get() : out.write.get(), 2);
    ::fcntl(lifeline.write.get(), F_SETFD, 0);
    for (const char* name : {"OMP_NUM_THREADS", "NO_COLOR", "LC_ALL",
                             "LC_CTYPE", "LOCKSTEP_TRAIN_PROGRAM"})
      ::unsetenv(name);
    ::setenv("LANG", "C.UTF-8", 1);
    ::setenv("TERM", "xterm", 1);
    for (const std::string& variable : environment) set_variable(variable);
    run_child(arguments);
  }
  out_ = std::move(out.read);
  err_ = std::move(err.read);
  lifeline_ = std::move(lifeline.read);
}

void LaunchedCommand::run_child(
    const std::vector<std::string>& arguments) const {
  std::string program = LOCKSTEP_COMMAND;
  std::vector<std::string> copy = arguments;
  std::vector<char*> pointers{program.data()};
  for (std::string& argument : copy) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  ::_exit(99);
}

LaunchedCommand::~LaunchedCommand() {
  if (!finished_) {
    // Asks it to end first: when killed, it could not clean up after a test.
    hang_up();
    ::kill(pid_, SIGCONT);
    ::kill(pid_, SIGINT);
    ::kill(pid_, SIGINT);
    if (!wait_until_nothing_is_left()) ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

void LaunchedCommand::signal(int number) const { ::kill(pid_, number); }

void LaunchedCommand::hang_up() {
  out_.reset();
  err_.reset();
}

bool LaunchedCommand::read_some() {
  std::array<pollfd, 2> entries{
      {{out_.get(), POLLIN, 0}, {err_.get(), POLLIN, 0}}};
  if (!out_ && !err_) return false;
  if (::poll(entries.data(), entries.size(), timeout().poll_milliseconds()) <=
      0)
    return false;
  if (entries[0].revents != 0) read_into(out_, result_.out);
  if (entries[1].revents != 0) read_into(err_, result_.err);
  return true;
}

bool LaunchedCommand::wait_for(const std::string& text, int times) {
  while (occurrences(result_.out, text) + occurrences(result_.err, text) <
         times)
    if (!read_some()) return false;
  return true;
}

CommandResult LaunchedCommand::finish() {
  while (read_some()) {
  }
  int status = 0;
  ::waitpid(pid_, &status, 0);
  finished_ = true;
  result_.exit_code =
      WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result_;
}

bool LaunchedCommand::wait_until_stopped() const {
  int status = 0;
  return ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
}

bool LaunchedCommand::something_is_left() const {
  pollfd entry{lifeline_.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 0;
}

bool LaunchedCommand::wait_until_nothing_is_left() const {
  pollfd entry{lifeline_.get(), POLLIN, 0};
  return ::poll(&entry, 1, timeout().poll_milliseconds()) > 0;
}

bool LaunchedCommand::wait_until_output_is_full() const {
  const int capacity = ::fcntl(out_.get(), F_GETPIPE_SZ);
  const Deadline deadline = timeout();
  int held = 0;
  while (!deadline.expired()) {
    if (::ioctl(out_.get(), FIONREAD, &held) == 0 && held >= capacity)
      return true;
    std::this_thread::yield();
  }
  return false;
}

bool LaunchedCommand::interrupt_until_nothing_is_left() const {
  constexpr int kBetweenMilliseconds = 20;
  const Deadline deadline = timeout();
  while (!deadline.expired()) {
    signal(SIGINT);
    pollfd entry{lifeline_.get(), POLLIN, 0};
    if (::poll(&entry, 1, kBetweenMilliseconds) > 0) return true;
  }
  return false;
}

Gate::Gate() { ::mkfifo(path_.c_str(), S_IRUSR | S_IWUSR); }

void Gate::open() const { std::ofstream(path_) << "open\n"; }

bool Gate::opened() const {
  std::string word;
  std::ifstream(path_) >> word;
  return word == "open";
}

CommandResult run_lockstep(const std::vector<std::string>& arguments,
                           const std::vector<std::string>& environment) {
  return LaunchedCommand(arguments, environment).finish();
}

std::vector<std::string> shell_workers(int workers, const std::string& script) {
  return {"run", "--grace=0.5", "-n",  std::to_string(workers),
          "sh",  "-c",          script};
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

}  // namespace lockstep
