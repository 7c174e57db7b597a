#include "src/launch/nodes/host_order.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"
#include "src/base/printable.h"
#include "src/base/process_environment.h"
#include "src/base/version.h"
#include "src/net/poll_set.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using Json = nlohmann::json;

// ssh connects and logs in before it starts the launcher.
constexpr std::chrono::seconds kOrderComes{30};
constexpr std::size_t kMostOrderBytes = std::size_t{16} << 20U;

// Without those that belong to one host or one start.
constexpr std::array<std::string_view, 15> kPassedOn{
    "LOCKSTEP_",       "OMP_",   "MKL_",    "KMP_",      "NCCL_",
    "GLOO_",           "TORCH_", "PYTORCH", "CUDA_",     "PYTHON",
    "LD_LIBRARY_PATH", "UCX_",   "FI_",     "OMPI_MCA_", "PET_"};
constexpr std::array<std::string_view, 7> kOfOneHost{
    "LOCKSTEP_STORE",      "LOCKSTEP_TOKEN",       "LOCKSTEP_DUMP_DIR",
    "LOCKSTEP_STORE_BIND", "LOCKSTEP_PROGRESS_FD", "LOCKSTEP_HOST_ID",
    "CUDA_VISIBLE_DEVICES"};

constexpr std::array<int, 5> kSignals{SIGINT, SIGTERM, SIGHUP, SIGQUIT,
                                      SIGUSR1};

bool is_passed_on(std::string_view name) {
  return std::ranges::find(kOfOneHost, name) == kOfOneHost.end() &&
         std::ranges::any_of(kPassedOn, [&](std::string_view prefix) {
           return name.starts_with(prefix);
         });
}

// The shell of an ssh command often has a shorter PATH than a user's login, and
// so the programs beside this one are found last.
void add_own_folder_to_path() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return;
  const std::string before = environment_variable("PATH").value_or("");
  const std::string folder = self.parent_path().string();
  ::setenv("PATH",
           before.empty() ? folder.c_str() : (before + ":" + folder).c_str(),
           1);
}

// One byte at a time: what follows the line is for another reader.
std::string read_line(int descriptor, Deadline deadline) {
  std::string line;
  for (char letter = 0;;) {
    if (wait_for(descriptor, POLLIN, deadline) != WaitResult::kReady)
      throw Timeout(
          "host-launcher: no order came on standard input; users start hosts "
          "with lockstep run -H, and its ssh must pass standard input on "
          "(not ssh -n), which no profile of the host's shell may read");
    const ssize_t count = ::read(descriptor, &letter, 1);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || line.size() == kMostOrderBytes)
      throw InvalidArgument(
          "host-launcher: standard input has no order; users start hosts with "
          "lockstep run -H, and its ssh must pass standard input on (not ssh "
          "-n)");
    if (letter == '\n') return line;
    line += letter;
  }
}

std::string version_in(const Json& order) {
  const auto found = order.find("version");
  return found != order.end() && found->is_string() ? found->get<std::string>()
                                                    : "";
}

void send_to_itself(std::string_view line) {
  const auto number = number_in<int>(line);
  if (number && std::ranges::find(kSignals, *number) != kSignals.end())
    ::kill(::getpid(), *number);
}

}  // namespace

std::string encode_order(const HostOrder& order) {
  const auto check = [](std::string_view what, const std::string& text) {
    try {
      (void)Json(text).dump();
    } catch (const Json::type_error&) {
      throw InvalidArgument(
          fmt::format("{} is not UTF-8, so it cannot go to other hosts: change "
                      "it, or start lockstep run on each host",
                      what));
    }
  };
  check("the directory " + printable(order.directory), order.directory);
  check("LOCKSTEP_TOKEN", order.token);
  for (const std::string& argument : order.arguments)
    check(fmt::format("the argument \"{}\"", printable(argument)), argument);
  for (const auto& [name, value] : order.environment)
    check("the variable " + printable(name), name + value);
  return Json(order).dump() + "\n";
}

HostOrder read_order(int descriptor, Deadline deadline) {
  const std::string line = read_line(descriptor, deadline);
  const Json order = Json::parse(line, nullptr, false);
  if (const std::string theirs = version_in(order);
      !theirs.empty() && theirs != version())
    throw InvalidArgument(
        fmt::format("this host has Lockstep {}, but the job is started by {}: "
                    "install the same version on every host",
                    version(), theirs));
  try {
    return order.get<HostOrder>();
  } catch (const Json::exception&) {
    throw InvalidArgument(
        "host-launcher: the order on standard input is malformed; users start "
        "hosts with lockstep run -H");
  }
}

HostOrder take_order(FileDescriptor& input) {
  input = FileDescriptor(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0));
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input || !nothing || ::dup2(nothing.get(), STDIN_FILENO) < 0)
    throw SystemError("host-launcher: cannot take standard input", errno);
  HostOrder order = read_order(input.get(), kOrderComes);
  if (::chdir(order.directory.c_str()) != 0)
    throw SystemError(
        fmt::format("{} has no directory {}, where the job was started; make "
                    "it there, or start the job from one that all hosts have",
                    order.host, order.directory),
        errno);
  for (const auto& [name, value] : order.environment)
    ::setenv(name.c_str(), value.c_str(), 1);
  ::setenv("LOCKSTEP_TOKEN", order.token.c_str(), 1);
  add_own_folder_to_path();
  return order;
}

std::map<std::string, std::string> environment_for_hosts(
    const std::vector<std::string>& environment,
    const std::vector<std::string>& more) {
  std::map<std::string, std::string> all;
  for (const std::string& variable : environment) {
    const std::size_t equals = variable.find('=');
    if (equals == std::string::npos) continue;
    all.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  std::map<std::string, std::string> passed;
  for (const auto& [name, value] : all)
    if (is_passed_on(name)) passed.emplace(name, value);
  for (const std::string& variable : more) {
    const std::size_t equals = variable.find('=');
    const std::string name = variable.substr(0, equals);
    if (name.empty())
      throw InvalidArgument(
          fmt::format("-x is \"{}\"; it must be NAME or NAME=VALUE", variable));
    if (equals != std::string::npos) {
      passed[name] = variable.substr(equals + 1);
    } else {
      const auto found = all.find(name);
      if (found == all.end())
        throw InvalidArgument(fmt::format(
            "-x {}: the variable is not set here; set it, or give its value "
            "as -x {}=VALUE",
            name, name));
      passed[name] = found->second;
    }
  }
  return passed;
}

OrderedSignals::OrderedSignals(FileDescriptor input)
    : input_(std::move(input)) {
  // The thread must not receive the signals that it sends.
  sigset_t all{};
  sigset_t before{};
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { pass_on(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

OrderedSignals::~OrderedSignals() {
  ends_.signal();
  thread_.join();
}

void OrderedSignals::pass_on() {
  std::string line;
  bool over = false;
  while (!over) {
    PollSet set;
    set.watch(ends_.descriptor(), POLLIN, [&] { over = true; });
    set.watch(input_.get(), POLLIN, [&] {
      char letter = 0;
      const ssize_t count = ::read(input_.get(), &letter, 1);
      if (count < 0 && errno == EINTR) return;
      if (count <= 0) {
        ended_ = true;
        ::kill(::getpid(), SIGTERM);
        over = true;
      } else if (letter == '\n') {
        send_to_itself(std::exchange(line, ""));
      } else if (line.size() < std::numeric_limits<int>::digits10) {
        line += letter;
      }
    });
    set.wait(Deadline::never());
  }
}

}  // namespace lockstep
