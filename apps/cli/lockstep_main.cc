// The command `lockstep`: parses the command line and executes it.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "apps/cli/command_line.h"
#include "apps/doctor/doctor_job.h"
#include "src/base/exit_codes.h"
#include "src/base/main_function.h"
#include "src/base/process_environment.h"
#include "src/base/report_text.h"
#include "src/base/version.h"
#include "src/launch/output/terminal_style.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/find_program.h"

namespace lockstep {
namespace {

// Without a terminal lines stay whole, for programs that search them.
int carry_out(const HelpRequest& request) {
  const auto window = terminal_window(STDOUT_FILENO);
  return print_report(window && window->ws_col > 0
                          ? wrap_help(request.text, window->ws_col)
                          : request.text);
}

int carry_out(const VersionRequest&) {
  std::string text = "lockstep " + std::string(version()) + "\n";
  const auto trainer = find_train_program(environment_variable);
  text += "trainer  " + trainer.value_or("not built") + "\n";
  return print_report(text);
}

int carry_out(const RunOptions& options) {
  return run_program(options, environment_variable);
}

int carry_out(const HostLauncherRequest&) {
  FileDescriptor signals;
  const HostOrder order = take_order(signals);
  RunOptions options = parse_order(order, usable_cores());
  const OrderedSignals sender(std::move(signals));
  options.is_cut_off = [&sender] { return sender.have_ended(); };
  return run_program(options, environment_variable);
}

int carry_out(const TrainRequest& request) {
  become_named_worker(request, environment_variable);
  return run_training(request, environment_variable);
}

int carry_out(const EvaluateRequest& request) {
  return run_evaluation(request, environment_variable);
}

int carry_out(const ScaleRequest& request) {
  return run_scale(request, environment_variable);
}

int carry_out(const BenchRequest& request) {
  return run_bench(request, environment_variable);
}

int carry_out(const CheckpointOptions& options) {
  run_checkpoint(options, environment_variable);
}

int carry_out(const DownloadDataRequest& request) {
  run_download(request, environment_variable);
}

int carry_out(const MakeImagesOptions& options) {
  return print_report(make_images(options));
}

int carry_out(const ShowDataOptions& options) {
  const ShownData shown = show_data(options);
  const int printed = print_report(shown.text);
  return shown.intact ? printed : kExitFailed;
}

int carry_out(const BlameOptions& options) {
  const BlameReport report = blame(options);
  const int printed = print_report(report.text);
  return printed == 0 && report.fault == RootFault::kNone ? kNoFault : printed;
}

// As a rank of a job. Only rank 0 ends with an error, so that the launcher
// blames no other.
int examine_ranks(const DoctorOptions& options) {
  std::fputs(announcement(environment_variable).c_str(), stderr);
  const int rank = Settings::read(environment_variable).rank.value_or(0);
  const auto report = examine_job(environment_variable);
  if (!report) return 0;
  const int printed =
      print_report(options.format == ReportFormat::kJson ? to_json(*report)
                                                         : to_text(*report));
  return printed == 0 && rank == 0 && !report->can_train() ? kExitFailed
                                                           : printed;
}

int carry_out(const DoctorOptions& options) {
  if (!options.host_only && is_rank_of_job(environment_variable))
    return examine_ranks(options);
  const DoctorReport report = examine(environment_variable);
  const int printed =
      print_report(options.format == ReportFormat::kJson ? to_json(report)
                                                         : to_text(report));
  return printed == 0 && !report.can_train() ? kExitFailed : printed;
}

int carry_out(const StatusOptions& options) {
  const HostStatus status = look_at_host(environment_variable, options);
  if (options.format == ReportFormat::kJson)
    return print_report(to_json(status));
  return print_report(options.job ? to_text(status.jobs) : to_text(status));
}

int run(std::span<const char* const> arguments) {
  try {
    return std::visit([](const auto& request) { return carry_out(request); },
                      parse_command_line(arguments, usable_cores()));
  } catch (const CannotExecute& error) {
    std::fprintf(stderr, "lockstep: %s\n", error.what());
    return error.exit_code();
  }
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
