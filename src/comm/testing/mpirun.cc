#include "src/comm/testing/mpirun.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/group/bootstrap.h"
#include "src/comm/group/group_core.h"
#include "src/comm/group/membership.h"

namespace lockstep {
namespace {

const char* const kMpirun = "/usr/bin/mpirun";

// The state that all tests in such a process share.
struct MpiJob {
  MpiJob() {
    settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
    membership = resolve_membership({}, settings);
    if (!membership.needs_bootstrap)
      throw InvalidArgument("these ranks were not started by mpirun alone");
    bootstrap = bootstrap_by_mpirun(membership, settings);
    store = open_store(bootstrap.store_url, {.token = bootstrap.token});
  }

  void meet(const std::string& where) const {
    using namespace std::chrono_literals;
    const auto key = [&](int rank) {
      return where + "/ended/" + std::to_string(rank);
    };
    store->set(key(membership.rank), {}, 1min);
    for (int rank = 0; membership.rank == 0 && rank < membership.world_size;
         ++rank)
      store->get(key(rank), 1min);
  }

  Settings settings = Settings::from_environment();
  Membership membership;
  Bootstrap bootstrap;
  std::shared_ptr<Store> store;
  int runs = 0;
};

}  // namespace

std::string why_no_mpirun() {
  std::error_code ignored;
  if (!std::filesystem::exists(kMpirun, ignored))
    return std::string("there is no ") + kMpirun;
  const std::string plugin = LOCKSTEP_TEST_PLUGINS "/liblockstep_mpi.so";
  if (!std::filesystem::exists(plugin, ignored))
    return "the plug-in mpi was not built, for want of MPI's headers";
  return "";
}

std::vector<std::string> mpirun_command(
    int ranks, const std::vector<std::string>& program) {
  std::vector<std::string> command{"/usr/bin/env"};
  // Variables of RankProcesses, which would take precedence over mpirun's.
  for (const char* variable :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
        "LOCKSTEP_STORE", "LOCKSTEP_TOKEN"}) {
    command.emplace_back("-u");
    command.emplace_back(variable);
  }
  // Open MPI's leaks are not ours, and the thread sanitizer cannot see how Open
  // MPI synchronises its threads.
  for (const char* option : {"ASAN_OPTIONS=detect_leaks=0",
                             "TSAN_OPTIONS=ignore_noninstrumented_modules=1"})
    command.emplace_back(option);
  // In /tmp one job's end removes the folder that another's begin relies on.
  static const TestDirectory folder;
  command.push_back("OMPI_MCA_orte_tmpdir_base=" + folder.path().string());
  for (const char* word : {kMpirun, "--allow-run-as-root", "--oversubscribe",
                           "--tag-output", "-n"})
    command.emplace_back(word);
  command.push_back(std::to_string(ranks));
  command.insert(command.end(), program.begin(), program.end());
  return command;
}

bool started_by_mpirun() {
  return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;
}

void run_rank_of_mpirun(
    int ranks, const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
  static MpiJob job;
  const std::string name = "test/" + std::to_string(job.runs++);
  if (ranks > job.membership.world_size)
    throw InvalidArgument("mpirun started fewer ranks than the test needs");
  // Rank 0 serves the store for as long as other ranks may need it.
  const std::shared_ptr<void> meeting(nullptr, [&](void*) { job.meet(name); });
  if (job.membership.rank >= ranks) return;
  const auto group = make_group(
      "mpi", {.name = name, .rank = job.membership.rank, .size = ranks},
      std::make_shared<World>(with_prefix(job.store, name + "/"),
                              job.settings));
  try {
    body(group);
  } catch (const std::exception& error) {
    group->abort(error.what());
    throw;
  }
}

}  // namespace lockstep
