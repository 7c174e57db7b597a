#include "lockstep/comm/spawn.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>

#include "src/base/exit_status.h"
#include "src/base/process_environment.h"
#include "src/base/rank_environment.h"
#include "src/base/secret.h"
#include "src/comm/spawn/new_execution.h"
#include "src/comm/spawn/rank_run.h"
#include "src/comm/spawn/spawn_server.h"
#include "src/net/free_port.h"
#include "src/store/tcp_store_server.h"

namespace lockstep {
namespace internal {
namespace {

constexpr int kMostRanks = 1024;

// One per process, as there is one default group: main() prepares it, and any
// function may call spawn().
std::unique_ptr<SpawnServer>& server_slot() {
  static auto& slot = *new std::unique_ptr<SpawnServer>;
  return slot;
}

bool has_launcher() {
  return read_rank_environment(environment_variable).launcher !=
         StartedBy::kNone;
}

void check_that_no_launcher_started_this() {
  if (!has_launcher()) return;
  throw InvalidArgument(
      "spawn: this process is already a rank, because its environment says so "
      "(RANK or WORLD_SIZE, or the variables of mpirun or srun)\n"
      "  likely:  a launcher or another spawn() has started it\n"
      "  next:    call the function here, once per rank, or start the program "
      "without a launcher");
}

void check_options(const SpawnOptions& options) {
  if (options.ranks < 1 || options.ranks > kMostRanks)
    throw InvalidArgument(
        fmt::format("spawn: the number of ranks is {}\n  next:    pass 1 to {}",
                    options.ranks, kMostRanks));
  if (options.grace < std::chrono::nanoseconds(0))
    throw InvalidArgument(
        "spawn: the grace is negative\n  next:    pass 0 or "
        "more");
}

int count_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return static_cast<int>(std::distance(begin(threads), end(threads)));
}

bool has_used_gpu() {
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed;
    if (std::filesystem::read_symlink(entry, closed)
            .string()
            .starts_with("/dev/nvidia"))
      return true;
  }
  return false;
}

void check_that_fork_is_safe() {
  const auto refuse = [](const std::string& reason) {
    throw InvalidArgument(fmt::format(
        "prepare_spawn: this process cannot be forked safely, because it {}\n"
        "  next:    call prepare_spawn() first in main(), or leave it out: "
        "spawn() then executes the program anew for each rank",
        reason));
  };
  if (const int threads = count_threads(); threads > 1)
    refuse(fmt::format("has {} threads", threads));
  if (has_used_gpu()) refuse("has used a GPU");
}

// Without prepare_spawn(), the ranks of two calls at once could not know which
// of them they belong to.
class OnlyCall {
 public:
  OnlyCall() {
    if (!runs_.exchange(true)) return;
    throw InvalidArgument(
        "spawn: another thread of this process is in spawn()\n"
        "  next:    call prepare_spawn() first in main(), so that several may "
        "run at once");
  }
  ~OnlyCall() { runs_ = false; }
  OnlyCall(const OnlyCall&) = delete;
  OnlyCall& operator=(const OnlyCall&) = delete;

 private:
  static inline std::atomic<bool> runs_{false};
};

std::optional<FailedRank> run_ranks(const SpawnRequest& request) {
  SpawnServer* const server = server_slot().get();
  if (server == nullptr) {
    const OnlyCall only;
    return execute_ranks(request);
  }
  if (!server->is_of_this_process())
    throw InvalidArgument(
        "spawn: this process was forked from the one that called "
        "prepare_spawn()\n  next:    call spawn() there");
  return server->run(request);
}

std::string describe_failure(const FailedRank& failed) {
  const std::string_view record = failed.record;
  if (record.starts_with(kReturned))
    return fmt::format("{} after its function had returned",
                       describe(failed.status));
  if (!record.empty())
    return fmt::format("threw an exception: {}", record.substr(1));
  return fmt::format("{} before its function returned",
                     describe(failed.status));
}

[[noreturn]] void throw_failure(const FailedRank& failed, int ranks) {
  std::string text = fmt::format("spawn: rank {} of {} {}", failed.rank, ranks,
                                 describe_failure(failed));
  if (failed.status.signal == SIGKILL)
    text += "\n  likely:  the system had no memory left, or a user killed it";
  if (failed.record.empty())
    text += "\n  next:    read what the rank has printed";
  throw RankFailure(failed.rank, failed.status.exit_code(),
                    failed.status.signal, text);
}

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** variable = ::environ; variable != nullptr && *variable != nullptr;
       ++variable)
    variables.emplace_back(*variable);
  return variables;
}

}  // namespace

void spawn_ranks(const SpawnCall& call, const SpawnOptions& options) {
  if (claim_executed_rank()) run_executed_rank();
  check_options(options);
  check_that_no_launcher_started_this();
  constexpr std::size_t kTokenBytes = 16;
  const std::string token = random_hex(kTokenBytes);
  const TcpStoreServer store("127.0.0.1", 0, token);
  const SpawnRequest request{
      .call = call,
      .ranks = options.ranks,
      .grace = options.grace,
      .environment = shared_environment(own_environment(), options.ranks,
                                        store.url(), token, find_free_port())};
  if (const auto failed = run_ranks(request))
    throw_failure(*failed, options.ranks);
}

}  // namespace internal

void prepare_spawn() {
  auto& slot = internal::server_slot();
  if (slot != nullptr || internal::has_launcher()) return;
  internal::check_that_fork_is_safe();
  slot = std::make_unique<internal::SpawnServer>();
}

}  // namespace lockstep
