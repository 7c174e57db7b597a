#include "src/tools/job/launch_flags.h"

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>
#include <string_view>

#include "src/launch/launcher/launcher.h"
#include "src/tools/job/flags.h"

namespace lockstep {
namespace {

constexpr std::array<std::string_view, 2> kBindings{"cores", "none"};

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags,
                      std::string_view more_logs) {
  command
      .add_option("--cpu-bind", flags.cpu_bind,
                  "cores: each worker runs on its share of the cores, where "
                  "there is one core for each; none: anywhere")
      ->check(one_of("CPU binding", kBindings))
      ->capture_default_str();
  command
      .add_option("--log-dir", flags.log_dir,
                  "Keep each rank's output in DIR/rank-N.log too" +
                      std::string(more_logs))
      ->type_name("DIR");
  command
      .add_option("--grace", flags.grace,
                  "How long workers that are asked to end (SIGTERM) may take "
                  "until they are killed")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
}

LaunchFlags parse_worker_flags(std::string_view name,
                               std::span<const char* const> arguments,
                               const std::function<void(CLI::App&)>& add) {
  CLI::App command;
  command.set_help_flag("");
  command.allow_extras();
  add(command);
  LaunchFlags flags;
  add_launch_flags(command, flags);
  parse_flags(command, arguments);
  refuse_extras(command, name);
  return flags;
}

void apply(const LaunchFlags& flags, LaunchOptions& options) {
  options.cpu_binding =
      flags.cpu_bind == "none" ? CpuBinding::kNone : CpuBinding::kCores;
  options.log_directory = flags.log_dir;
  options.grace = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(flags.grace));
}

}  // namespace lockstep
