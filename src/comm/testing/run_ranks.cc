#include "src/comm/testing/run_ranks.h"

#include <exception>
#include <iostream>
#include <thread>
#include <vector>

#include "src/comm/group/group_core.h"
#include "src/comm/testing/mpirun.h"
#include "src/faults/root_cause.h"

namespace lockstep {
namespace {

// Settings that find the plug-ins of this build.
Settings settings_of_test(const std::string& host) {
  Settings settings;
  settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
  settings.host_id = host;
  return settings;
}

// Prints all errors, since the thrown one need not be the first.
void tell(const std::vector<std::exception_ptr>& errors) {
  for (std::size_t rank = 0; rank < errors.size(); ++rank) try {
      if (errors[rank]) std::rethrow_exception(errors[rank]);
    } catch (const std::exception& error) {
      std::cerr << "run_ranks: rank " << rank << ": " << error.what() << '\n';
    }
}

}  // namespace

int ranks_of_first_host(int ranks) { return (ranks + 1) / 2; }

void run_ranks(const std::string& backend, int ranks, const RankBody& body) {
  if (backend == "mpi") return run_rank_of_mpirun(ranks, body);
  std::vector<std::string> hosts;
  for (int rank = 0; rank < ranks; ++rank)
    hosts.emplace_back(rank < ranks_of_first_host(ranks) ? "host a" : "host b");
  run_ranks_on(hosts, backend, body);
}

void run_ranks_on(const std::vector<std::string>& hosts,
                  const std::string& backend, const RankBody& body) {
  const int ranks = static_cast<int>(hosts.size());
  const auto store = open_store("memory:");
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      std::shared_ptr<ProcessGroup> group;
      try {
        group = make_group(
            backend, {.name = "test", .rank = rank, .size = ranks},
            std::make_shared<World>(
                store,
                settings_of_test(hosts[static_cast<std::size_t>(rank)])));
        body(group);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        if (group) group->abort(error.what());
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto cause = root_cause(errors);
  if (!cause) return;
  tell(errors);
  std::rethrow_exception(cause);
}

}  // namespace lockstep
