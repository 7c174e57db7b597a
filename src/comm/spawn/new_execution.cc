#include "src/comm/spawn/new_execution.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/process_environment.h"
#include "src/comm/spawn/rank_run.h"
#include "src/net/pipe.h"

namespace lockstep::internal {
namespace {

constexpr const char* kVariable = "LOCKSTEP_SPAWN";

// What LOCKSTEP_SPAWN says.
struct Order {
  int rank = -1;
  int request = -1;
  int result = -1;
  pid_t parent = -1;
};

// Nothing in a process that merely inherits the variable from a rank.
std::optional<Order> read_order() {
  const auto text = environment_variable(kVariable);
  Order order;
  if (!text || std::sscanf(text->c_str(), "%d,%d,%d,%d", &order.rank,
                           &order.request, &order.result, &order.parent) != 4)
    return {};
  if (order.parent != ::getppid()) return {};
  return order;
}

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string one; std::getline(file, one, '\0');)
    arguments.push_back(one);
  return arguments;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs between fork and exec. There it may only make
// system calls, because other threads may have held any lock at the fork.
struct ChildPlan {
  char* const* arguments;
  char* const* environment;
  int request;
  int result;
  int failure;
  int nothing;  // /dev/null
  pid_t parent;
};

bool set_up_child(const ChildPlan& plan) {
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return false;
  if (::getppid() != plan.parent) ::_exit(1);
  if (::dup2(plan.nothing, STDIN_FILENO) < 0) return false;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0 && ::dup2(plan.nothing, stream) < 0)
      return false;
  return ::fcntl(plan.request, F_SETFD, 0) == 0 &&
         ::fcntl(plan.result, F_SETFD, 0) == 0;
}

[[noreturn]] void run_child(const ChildPlan& plan) {
  if (set_up_child(plan))
    ::execve("/proc/self/exe", plan.arguments, plan.environment);
  const int error = errno;
  [[maybe_unused]] const auto sent =
      ::write(plan.failure, &error, sizeof error);
  ::_exit(127);
}

// Waits until the child has executed the program, which closes the pipe.
void check_start(const FileDescriptor& pipe) {
  int error = 0;
  ssize_t count = 0;
  do count = ::read(pipe.get(), &error, sizeof error);
  while (count < 0 && errno == EINTR);
  if (count == static_cast<ssize_t>(sizeof error))
    throw SystemError("spawn: could not execute this program anew", error);
}

Pipe make_high_pipe() {
  Pipe pipe = make_pipe();
  return {above_standard(std::move(pipe.read)),
          above_standard(std::move(pipe.write))};
}

void start_rank(const SpawnRequest& request, const FileDescriptor& file,
                int rank, RankWatch& watch) {
  Pipe result = make_high_pipe();
  Pipe failure = make_high_pipe();
  const FileDescriptor nothing =
      above_standard(FileDescriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)));
  if (!nothing) throw SystemError("could not open /dev/null", errno);
  auto arguments = own_arguments();
  auto environment = request.environment;
  for (std::string& variable : rank_variables(rank))
    environment.push_back(std::move(variable));
  environment.push_back(fmt::format("{}={},{},{},{}", kVariable, rank,
                                    file.get(), result.write.get(),
                                    ::getpid()));
  const auto argument_pointers = pointers_to(arguments);
  const auto environment_pointers = pointers_to(environment);
  const ChildPlan plan{.arguments = argument_pointers.data(),
                       .environment = environment_pointers.data(),
                       .request = file.get(),
                       .result = result.write.get(),
                       .failure = failure.write.get(),
                       .nothing = nothing.get(),
                       .parent = ::getpid()};
  const pid_t pid = ::fork();
  if (pid == 0) run_child(plan);
  if (pid < 0) throw SystemError("spawn: could not start a process", errno);
  watch.add(pid, std::move(result.read));
  failure.write.reset();
  check_start(failure.read);
}

}  // namespace

std::optional<FailedRank> execute_ranks(const SpawnRequest& request) {
  const FileDescriptor file = pack(request);
  std::fflush(nullptr);  // before the ranks' output
  RankWatch watch(request.grace);
  for (int rank = 0; rank < request.ranks; ++rank)
    start_rank(request, file, rank, watch);
  return watch.wait({});
}

bool claim_executed_rank() {
  static std::atomic_flag has_run;
  return read_order().has_value() && !has_run.test_and_set();
}

void run_executed_rank() {
  const Order order = read_order().value();
  ::unsetenv(kVariable);
  const FileDescriptor file(order.request), result(order.result);
  ::fcntl(file.get(), F_SETFD, FD_CLOEXEC);
  ::fcntl(result.get(), F_SETFD, FD_CLOEXEC);
  run_rank(file, order.rank, result, StartedAs::kExecuted);
}

}  // namespace lockstep::internal
