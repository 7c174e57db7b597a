#include "apps/run/run_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>
#include <utility>

#include "apps/job/flags.h"
#include "apps/run/run_plan.h"
#include "lockstep/base/error.h"
#include "src/base/descriptor_limit.h"
#include "src/base/exit_codes.h"
#include "src/base/main_function.h"
#include "src/base/number_in.h"
#include "src/base/report_text.h"
#include "src/base/secret.h"
#include "src/base/shell_word.h"
#include "src/base/version.h"
#include "src/launch/job/job.h"
#include "src/launch/nodes/host_launchers.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {

int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus) {
  if (text == "cpu") return cores;
  const int gpus = text == "gpu" || text == "auto" ? count_gpus() : 0;
  if (gpus > 0) return gpus;
  if (text == "auto") return cores;
  if (text == "xpu")
    throw InvalidArgument(
        "--nproc-per-node is xpu, a value of torchrun for Intel's GPUs, which "
        "Lockstep does not use: give a number");
  if (text == "gpu")
    throw InvalidArgument(
        "--nproc-per-node is gpu, but there is no GPU that these workers could "
        "use: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or give a number");
  const auto workers = number_in<int>(text);
  if (!workers || *workers < 1 || *workers > kMostRanksOfAHost)
    throw InvalidArgument(fmt::format(
        "--nproc-per-node is \"{}\"; it must be a number from 1 to {}, or cpu, "
        "gpu or auto for the number of cores or GPUs",
        text, kMostRanksOfAHost));
  return *workers;
}

void add_stream_flags(CLI::App& command, StreamFlags& flags) {
  constexpr const char* kChoice = "STREAMS";
  command
      .add_option("-r,--redirects", flags.redirects,
                  "Streams that go to the logs alone: 1 output, 2 errors, 3 "
                  "both, or by local rank, as in 0:3,1:2; without --log-dir to "
                  "logs in a new folder for temporary files")
      ->type_name(kChoice);
  command
      .add_option("-t,--tee", flags.tee,
                  "Streams that go to the logs and to the screen [3]")
      ->type_name(kChoice);
  command
      .add_option("--local-ranks-filter", flags.local_ranks_filter,
                  "The local ranks whose output the screen shows [all]")
      ->type_name("RANK,...");
  command.add_flag("--fold,!--no-fold", flags.fold,
                   "Show a line that several ranks of a host print at nearly "
                   "the same time once [on a terminal]");
  command
      .add_option("--error-file", flags.error_file,
                  "Write the failure that ends the job to this file, as JSON, "
                  "on the host of the rank that the launcher blames")
      ->type_name("FILE");
}

void add_reform_flags(CLI::App& command, ReformFlags& flags) {
  command.add_flag(
      "--in-place", flags.in_place,
      "When a worker dies, let the others form a new group and go on "
      "(lockstep::elastic); --max-restarts workers are replaced");
  command
      .add_option("--min-ranks", flags.min_ranks,
                  "With --in-place: go on with fewer ranks, down to so many "
                  "[all that the job starts]")
      ->check(whole_number(1, 1'000'000))
      ->type_name("N");
}

void check_reform_flags(const ReformFlags& flags, const NodeFlags& nodes,
                        int workers) {
  if (!flags.in_place && flags.min_ranks)
    throw InvalidArgument(
        "--min-ranks says how many ranks must remain where the others form a "
        "new group: give --in-place too");
  // The coordinator knows the ranks of several hosts.
  if (!nodes.host_list.empty() || !nodes.host_file.empty() ||
      nodes.is_ordered || range_of(nodes, 0).most > 1)
    return;
  if (flags.min_ranks && *flags.min_ranks > workers)
    throw InvalidArgument(
        fmt::format("--min-ranks is {}, but the job has {} ranks (-n)",
                    *flags.min_ranks, workers));
}

StreamPlan streams_of(const StreamFlags& flags) {
  StreamPlan plan;
  plan.fold = flags.fold;
  if (!flags.redirects.empty())
    plan.redirects = StreamChoice::parse("--redirects", flags.redirects);
  if (!flags.tee.empty()) plan.tee = StreamChoice::parse("--tee", flags.tee);
  if (!flags.local_ranks_filter.empty())
    plan.shown_local_ranks =
        parse_local_ranks("--local-ranks-filter", flags.local_ranks_filter);
  return plan;
}

void check_shown_ranks(const StreamPlan& plan, int workers) {
  const auto is_here = [&](int local) { return local < workers; };
  if (plan.shown_local_ranks.empty() ||
      std::ranges::any_of(plan.shown_local_ranks, is_here))
    return;
  throw InvalidArgument(fmt::format(
      "--local-ranks-filter is {}, but the greatest local rank is {}: the "
      "screen would show no rank",
      fmt::join(plan.shown_local_ranks, ","), workers - 1));
}

std::vector<std::string> command_of(std::vector<std::string> program,
                                    const PythonFlags& python,
                                    const EnvironmentLookup& lookup) {
  if (python.no_python && python.module)
    throw InvalidArgument(
        "--module runs a Python module, which --no-python forbids: leave one "
        "of them out");
  const std::string& file = program.front();
  // Also an executable one, as under torchrun: some file systems and archives
  // make every file executable.
  const bool is_script =
      file.ends_with(".py") && ::access(file.c_str(), R_OK) == 0;
  if (python.no_python || !(python.module || is_script)) return program;
  if (python.module) program.insert(program.begin(), "-m");
  program.insert(program.begin(),
                 {lookup("PYTHON_EXEC").value_or("python3"), "-u"});
  return program;
}

std::string note_on_threads(int workers, int cores,
                            const EnvironmentLookup& lookup) {
  if (workers > 1 || cores == 1 || lookup("OMP_NUM_THREADS")) return "";
  return fmt::format(
      "OMP_NUM_THREADS is not set: the rank may compute with a thread on each "
      "of {} cores, where each of several ranks gets 1 thread",
      cores);
}

namespace {

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

std::string current_directory() {
  std::error_code error;
  const auto path = std::filesystem::current_path(error);
  if (error)
    throw SystemError(
        "the directory in which this command runs is gone; change to another",
        error.value());
  return path;
}

// Whether --redirects or --tee send a stream of a worker to a log.
bool asks_for_logs(const StreamPlan& streams, int workers) {
  if (!streams.redirects && !streams.tee) return false;
  for (int local = 0; local < workers; ++local)
    if (streams.logged(local) != kNoStream) return true;
  return false;
}

// The folder of --log-dir; where logs are asked for and the user gave none, a
// new one, whose name the user is told.
std::string log_folder(const LaunchFlags& flags, const StreamPlan& streams,
                       int workers) {
  if (!flags.log_dir.empty() || !asks_for_logs(streams, workers))
    return flags.log_dir;
  std::error_code error;
  std::string folder =
      std::filesystem::temp_directory_path(error) / "lockstep-logs-XXXXXX";
  if (error || ::mkdtemp(folder.data()) == nullptr)
    throw SystemError(
        "cannot create a folder for logs; name one with --log-dir",
        error ? error.value() : errno);
  std::fputs(fmt::format("lockstep: the logs are in {}\n", folder).c_str(),
             stderr);
  return folder;
}

// As CoordinatorOptions has it.
int min_ranks_of(const ReformFlags& flags) {
  return flags.in_place ? flags.min_ranks.value_or(0) : -1;
}

int run_on_hosts(const RunOptions& options, const EnvironmentLookup& lookup) {
  const NodeFlags& flags = options.nodes;
  const NodeRange range = range_of(flags, options.hosts.size());
  const JoinTimes times = join_times_of(flags);
  const std::string token = token_of_hosts(lookup);
  LaunchOptions launch;
  apply(options.launch, launch);
  raise_descriptor_limit();
  const auto hosts = locate(options.hosts);
  // Before every thread, which must not receive the signals.
  SignalWatch signals;
  Screen screen(STDOUT_FILENO, STDERR_FILENO, lookup);
  return HostLaunchers(
             {.hosts = hosts,
              .ssh = words_of(flags.ssh),
              .program = std::filesystem::read_symlink("/proc/self/exe"),
              .command = std::string(kHostLauncher),
              .address = address_for(hosts, flags.local_address),
              .job = flags.id,
              .order = {.version = std::string(version()),
                        .token =
                            token.empty() ? random_hex(sizeof(Secret)) : token,
                        .directory = current_directory(),
                        .environment = environment_for_hosts(
                            current_environment(), flags.variables),
                        .arguments = options.arguments,
                        .least = range.least,
                        .most = range.most},
              .max_restarts = flags.max_restarts,
              .min_ranks = min_ranks_of(options.reform),
              .grace = launch.grace,
              .join_timeout = times.join,
              .last_call = times.last_call},
             signals, screen)
      .run();
}

}  // namespace

int run_program(const RunOptions& options, const EnvironmentLookup& lookup) {
  if (!options.dry_run) discard_closed_output();
  if (!options.hosts.empty())
    return options.dry_run ? print_report(describe_hosts(options.hosts))
                           : run_on_hosts(options, lookup);
  LaunchOptions launch;
  launch.command = options.command;
  launch.job.workers = options.workers;
  launch.job.run_id = options.nodes.id;
  launch.job.max_restarts = options.nodes.max_restarts;
  if (options.reform.in_place) {
    launch.after_death = AfterDeath::kReformInPlace;
    launch.min_ranks = options.reform.min_ranks.value_or(options.workers);
  }
  apply(options.launch, launch);
  launch.job.role = options.role;
  launch.job.virtual_local_rank = options.virtual_local_rank;
  launch.streams = streams_of(options.streams);
  launch.error_file = options.streams.error_file;
  auto nodes = nodes_of(options.nodes, lookup);
  for (const std::string& line : ignored_flags(options.nodes))
    std::fputs(fmt::format("lockstep: {}\n", line).c_str(), stderr);
  if (options.dry_run) return print_report(describe_plan(launch, !nodes));
  // Of several hosts one launcher speaks.
  if (!options.nodes.is_ordered || options.nodes.node_rank == 0)
    launch.note = note_on_threads(options.workers, usable_cores(), lookup);
  launch.log_directory =
      log_folder(options.launch, launch.streams, options.workers);
  // Beside --master-addr it is the port where the launchers meet.
  if (!nodes || options.nodes.master_address.empty())
    launch.job.master_port =
        static_cast<std::uint16_t>(options.nodes.master_port);
  if (!nodes) return run_job(std::move(launch), lookup);
  nodes->agreement.min_ranks = min_ranks_of(options.reform);
  nodes->is_cut_off = options.is_cut_off;
  nodes->command_line = "lockstep run " + command_line(options.arguments);
  nodes->command = launch.command;
  return run_job_on_hosts(std::move(launch), std::move(*nodes), lookup);
}

}  // namespace lockstep
