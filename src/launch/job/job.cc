#include "src/launch/job/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/descriptor_limit.h"
#include "src/base/exit_codes.h"
#include "src/base/first_line.h"
#include "src/base/secret.h"
#include "src/launch/output/terminal_text.h"
#include "src/launch/record/error_file.h"
#include "src/launch/record/job_list.h"
#include "src/launch/record/record_folder.h"
#include "src/launch/worker/find_program.h"
#include "src/net/free_port.h"
#include "src/store/host_address.h"
#include "src/store/tcp_store_server.h"

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
  if (chosen && !chosen->empty() && !lookup("LOCKSTEP_STORE"))
    return RecordFolder(std::filesystem::absolute(*chosen));
  return RecordFolder::make_in(options.log_directory);
}

void tell(const std::string& line) {
  std::fputs(fmt::format("lockstep: {}\n", safe_for_terminal(line)).c_str(),
             stderr);
}

// What follows when the workers of a round have ended.
struct RoundEnd {
  bool again = false;  // the workers start again
  std::string because = {};
  int exit_code = 0;
  // Of the rank that is blamed, if it is one of this host.
  std::optional<WorkerFailure> failure = {};
};

// The rounds of a job: its first start, and each restart.
class Rounds {
 public:
  Rounds(LaunchOptions options, const EnvironmentLookup& lookup,
         const JobView& view)
      : options_(std::move(options)),
        lookup_(lookup),
        view_(view),
        screen_(view.out, view.err, lookup, view.on_progress),
        master_port_(options_.job.master_port) {
    options_.standard_input = readable_input();
    raise_descriptor_limit();
    remove_forgotten_records();
  }

  // `speaks`: whether it tells the user what concerns the whole job.
  int run(std::unique_ptr<Node> node, bool speaks = true);

  // The signal that asked the launcher to end, or 0; for waits without workers.
  int ending_signal() {
    for (const int signal : signals_.take())
      if (asks_to_end(signal)) signal_ = signal;
    return signal_;
  }

 private:
  RoundEnd run_here();
  RoundEnd run_with_others(Node& node);
  JobResult launch();
  JobResult launch_or_report(Node& node);
  void rethrow_if_others_go_on(Node& node, const std::exception& error) const;
  void report_end(Node& node, const JobResult& result, bool reported);
  std::uint16_t free_master_port() const {
    return master_port_ != 0 ? master_port_ : find_free_port();
  }

  LaunchOptions options_;
  const EnvironmentLookup& lookup_;
  const JobView& view_;
  // Before every thread, which must not receive the signals.
  SignalWatch signals_;
  Screen screen_;
  const std::uint16_t master_port_;  // the user's, or 0
  const std::chrono::steady_clock::time_point began_ =
      std::chrono::steady_clock::now();
  int signal_ = 0;
};

JobResult Rounds::launch() {
  RecordFolder records = record_folder(options_, lookup_);
  if (!records.earlier().empty())
    tell("the records of an earlier job are now in " +
         records.earlier().string());
  // Not among the records: these may be in a folder that other jobs use.
  const RecordFolder notes = RecordFolder::make_in({});
  LaunchOptions options = options_;
  options.job.dump_directory = records.path();
  options.job.notes_directory = notes.path();
  JobListing listing(job_list_folder(lookup_), options.job.workers);
  if (options.job.workers_are_ranks)
    options.job.steps_file = listing.steps_file();
  options.on_start = [&](const RunningWorkers& running) {
    listing.publish({.command = options_.command,
                     .run_id = options_.job.run_id,
                     .world_size = running.world_size,
                     .restarts = options_.job.restarts,
                     .pids = running.pids,
                     .ranks = running.ranks,
                     .began = began_});
  };
  if (options.job.restarts > 0 && !options.log_directory.empty())
    options.log_directory += fmt::format("/restart-{}", options.job.restarts);
  JobResult result = Launcher(std::move(options), signals_, screen_).run();
  if (!result.keeps_records) records.forget_records();
  if (view_.on_end) view_.on_end(result);
  return result;
}

RoundEnd Rounds::run_here() {
  JobEnvironment& job = options_.job;
  // Connections of the ranks before may hold the port for a minute; a program's
  // rank 0 can bind it nevertheless.
  if (master_port_ != 0 && job.restarts == 0) check_port_is_free(master_port_);
  job.master_port = free_master_port();
  job.token = random_hex(sizeof(Secret));
  const TcpStoreServer store("127.0.0.1", 0, job.token);
  job.store_url = store.url();
  const JobResult result = launch();
  // A job that re-forms in place has used up what --max-restarts allows.
  if (!result.failure || result.signal != 0 ||
      job.restarts >= job.max_restarts ||
      options_.after_death == AfterDeath::kReformInPlace)
    return {.exit_code = result.exit_code, .failure = result.failure};
  return {.again = true, .because = summary_of(*result.failure)};
}

// Rethrows an error that concerns this host alone: a job that re-forms in place
// then loses the host, and goes on if it can.
void Rounds::rethrow_if_others_go_on(Node& node,
                                     const std::exception& error) const {
  if (dynamic_cast<const NetworkError*>(&error) != nullptr ||
      dynamic_cast<const Timeout*>(&error) != nullptr)
    node.lose_rendezvous();
  if (options_.job.joins_late) throw;  // the others need not know why
}

// A program that this host cannot start, for example, ends the job on every
// host.
JobResult Rounds::launch_or_report(Node& node) try {
  return launch();
} catch (const std::exception& error) {
  if (options_.after_death == AfterDeath::kReformInPlace)
    rethrow_if_others_go_on(node, error);
  const auto* program = dynamic_cast<const CannotExecute*>(&error);
  node.report(
      {.text = fmt::format("the launcher on {} {}: {}", own_host_name(),
                           program ? "cannot start its workers" : "failed",
                           first_line(error.what())),
       .exit_code = program == nullptr ? kExitFailed : program->exit_code(),
       .is_final = true});
  try {
    node.finish(false);  // the others may read it from this launcher's store
  } catch (const Error&) {
  }
  throw;
}

// The end of this host's workers for which no worker of it is to blame.
void Rounds::report_end(Node& node, const JobResult& result, bool reported) {
  if (result.signal != 0)
    node.report_signal(result.signal, result.exit_code);
  else if (!reported && !result.ended_elsewhere)
    node.report({.text = fmt::format("the launcher on {} ended its workers",
                                     own_host_name()),
                 .exit_code = result.exit_code,
                 .is_final = true});
}

RoundEnd Rounds::run_with_others(Node& node) {
  JobEnvironment& job = options_.job;
  job.master_port = free_master_port();
  if (const auto verdict = node.join(job))
    return {
        .because = verdict->fault.text,
        .exit_code = verdict->next == "finish" ? 0 : verdict->fault.exit_code};
  options_.ended_elsewhere = node.ended_elsewhere();
  options_.launcher_id = node.id();
  bool reported = false;
  options_.on_failure = [&](const WorkerFailure& failure) {
    reported = true;
    node.report(
        {.text = fmt::format("{} on {}", summary_of(failure), own_host_name()),
         .exit_code = failure.status.exit_code(),
         .kind = failure.kind});
  };
  const JobResult result = launch_or_report(node);
  if (result.lost_store && result.signal == 0) node.lose_rendezvous();
  const bool well =
      result.exit_code == 0 && !result.failure && !result.ended_elsewhere;
  if (!well) report_end(node, result, reported);
  const RoundVerdict verdict = node.finish(well);
  // The user's wish counts, also where another host's fault came first.
  if (verdict.next == "finish" || result.signal != 0)
    return {.because = verdict.fault.text, .exit_code = result.exit_code};
  return {.again = verdict.next == "restart",
          .because = verdict.fault.text,
          .exit_code = verdict.fault.exit_code,
          .failure = verdict.fault.node == node.id()
                         ? result.failure
                         : std::optional<WorkerFailure>()};
}

int Rounds::run(std::unique_ptr<Node> node, bool speaks) {
  std::optional<ErrorFile> error_file;
  if (!options_.error_file.empty()) error_file.emplace(options_.error_file);
  for (;; ++options_.job.restarts) {
    const RoundEnd end = node ? run_with_others(*node) : run_here();
    if (!end.again) {
      if (speaks && !end.because.empty())
        tell("the job ended on every host: " + end.because);
      if (end.failure && error_file)
        error_file->write(*end.failure, options_.job.restarts, own_host_name());
      return end.exit_code;
    }
    if (speaks)
      tell(fmt::format("starts the workers again (restart {} of {}): {}",
                       options_.job.restarts + 1, options_.job.max_restarts,
                       end.because));
  }
}

}  // namespace

int run_job(LaunchOptions options, const EnvironmentLookup& lookup,
            const JobView& view) {
  return Rounds(std::move(options), lookup, view).run(nullptr);
}

int run_job_on_hosts(LaunchOptions options, NodeOptions nodes,
                     const EnvironmentLookup& lookup) {
  const JobView view;
  nodes.workers = options.job.workers;
  nodes.grace = options.grace;
  Rounds rounds(std::move(options), lookup, view);
  const bool speaks = !nodes.is_ordered;
  const NodeUser user{.ending_signal = [&] { return rounds.ending_signal(); },
                      .tell =
                          [&](const std::string& line) {
                            if (speaks) tell(line);
                          }};
  try {
    return rounds.run(std::make_unique<Node>(std::move(nodes), user), speaks);
  } catch (const Interrupted&) {
    return 128 + rounds.ending_signal();
  } catch (const JobIsOver&) {
    return 0;
  }
}

}  // namespace lockstep
