#include "src/tools/job/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "src/base/rank_environment.h"
#include "src/base/secret.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/launch/record/record_folder.h"
#include "src/launch/worker/free_port.h"
#include "src/store/tcp_store_server.h"
#include "src/tools/job/rank_place.h"

namespace lockstep {
namespace {

// A terminal is not passed on: it is not the controlling one of a worker, which
// would take the keys that the user meant for the shell.
int readable_input() {
  const bool open = ::fcntl(STDIN_FILENO, F_GETFD) >= 0;
  return open && ::isatty(STDIN_FILENO) != 1 ? STDIN_FILENO : -1;
}

// The folder for the ranks' records: the user's, unless it comes from an outer
// job, whose ranks have the same names.
RecordFolder record_folder(const LaunchOptions& options,
                           const EnvironmentLookup& lookup) {
  const auto chosen = lookup("LOCKSTEP_DUMP_DIR");
  if (chosen && !chosen->empty() && !lookup("LOCKSTEP_TOKEN"))
    return RecordFolder(std::filesystem::absolute(*chosen));
  return RecordFolder::make_in(options.log_directory);
}

}  // namespace

LaunchOptions launch_options(const CompanionJob& job,
                             const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = {require_companion(job.companion, lookup)};
  launch.command.insert(launch.command.end(), job.arguments.begin(),
                        job.arguments.end());
  launch.job.workers = job.ranks;
  launch.job.library_folder = torch_library_folder(lookup);
  apply(job.launch, launch);
  return launch;
}

void join_ranks_of_launcher(const LaunchOptions& options,
                            const EnvironmentLookup& lookup) {
  const RankEnvironment place = read_rank_environment(lookup);
  check_rank_environment(place);
  if (place.launcher == StartedBy::kNone) return;
  if (*place.rank == 0)
    std::fputs(fmt::format("lockstep: joins the {} rank{} that {} started\n",
                           *place.world_size, *place.world_size == 1 ? "" : "s",
                           place.launcher == StartedBy::kTorchrun
                               ? "torchrun or lockstep run"
                               : name_of(place.launcher))
                   .c_str(),
               stderr);
  // So that launchers see their rank as the process itself.
  become(options.command, options.environment);
}

int run_job(LaunchOptions options, const EnvironmentLookup& lookup,
            const JobView& view) {
  if (options.job.master_port == 0)
    options.job.master_port = find_free_port();
  else
    check_port_is_free(options.job.master_port);
  options.job.token = random_hex(sizeof(Secret));
  options.standard_input = readable_input();
  const RecordFolder records = record_folder(options, lookup);
  if (!records.earlier().empty())
    std::fputs(fmt::format("lockstep: the records of an earlier job are now in "
                           "{}\n",
                           records.earlier().string())
                   .c_str(),
               stderr);
  options.job.dump_directory = records.path();
  options.job.plugin_folder = plugin_folder();
  // The signals first, because the server's thread must not receive them.
  SignalWatch signals;
  const TcpStoreServer store("127.0.0.1", 0, options.job.token);
  options.job.store_url = store.url();
  Screen screen(view.out, view.err, lookup, view.on_progress);
  const JobResult result = Launcher(std::move(options), signals, screen).run();
  if (view.on_end) view.on_end(result);
  return result.exit_code;
}

}  // namespace lockstep
