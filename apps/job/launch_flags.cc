#include "apps/job/launch_flags.h"

#include <CLI/CLI.hpp>
#include <array>
#include <chrono>

#include "apps/job/flags.h"
#include "src/base/name_table.h"
#include "src/comm/wire/transport_plugin.h"
#include "src/launch/launcher/launcher.h"

namespace lockstep {
namespace {

constexpr std::array<NamedValue<Binding>, 5> kBindings{{
    {"auto", Binding::kAuto, "core where each worker can have one"},
    {"none", Binding::kNone, "anywhere"},
    {"core", Binding::kCore, "on its share of the cores"},
    {"socket", Binding::kSocket, "on the sockets of that share"},
    {"numa", Binding::kNuma, "on its NUMA nodes"},
}};

// More than a day, in seconds.
constexpr double kGraceBelow = 86401;

}  // namespace

void add_launch_flags(CLI::App& command, LaunchFlags& flags,
                      std::string_view more_logs) {
  command
      .add_option("--bind", flags.bind,
                  "Where each worker runs: " + list_names(kBindings))
      ->check(one_of("binding", names_in(kBindings)))
      ->capture_default_str();
  command
      .add_option("--log-dir", flags.log_dir,
                  "Keep each rank's output in DIR/rank-N.log too" +
                      std::string(more_logs))
      ->type_name("DIR");
  command
      .add_option("--grace,--shutdown-timeout", flags.grace,
                  "How long workers that are asked to end (SIGTERM) may take "
                  "until they are killed")
      ->type_name("SECONDS")
      ->check(number(0, kGraceBelow))
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
  options.job.plugin_folder = plugin_folder();
  options.binding = row_named(kBindings, "binding", flags.bind).value;
  options.log_directory = flags.log_dir;
  options.grace = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::duration<double>(flags.grace));
}

}  // namespace lockstep
