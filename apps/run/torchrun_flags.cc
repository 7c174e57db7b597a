#include "apps/run/torchrun_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "apps/job/flags.h"
#include "src/base/process_environment.h"

namespace lockstep {
namespace {

// A flag that asks for what only torchrun has.
struct ForeignFlag {
  const char* name;
  // Values, separated by commas, with which it asks for nothing.
  std::string_view harmless;
  std::string_view instead;
};

constexpr std::array<ForeignFlag, 6> kForeignFlags{{
    {"--event-log-handler", "null",
     "lockstep run writes its events to standard error, and the failure of a "
     "job to --error-file"},
    {"--logs-specs", "",
     "--log-dir, --redirects and --tee say what becomes of the ranks' output"},
    {"--duplicate-stdout-filters", "",
     "keep the output with --tee and --log-dir, and search the logs with grep"},
    {"--duplicate-stderr-filters", "",
     "keep the output with --tee and --log-dir, and search the logs with grep"},
    {"--numa-binding", "",
     "--bind numa, --bind socket or --bind core place each rank, by its share "
     "of the cores and not by its GPU"},
    {"--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
     "lockstep run passes SIGTERM, SIGINT, SIGHUP and SIGQUIT on, and SIGUSR1 "
     "makes the ranks write their records"},
}};

bool is_harmless(const ForeignFlag& flag, std::string_view value) {
  while (!value.empty()) {
    const std::string_view part = value.substr(0, value.find(','));
    value.remove_prefix(std::min(value.size(), part.size() + 1));
    const std::string known = fmt::format(",{},", flag.harmless);
    if (known.find(fmt::format(",{},", part)) == std::string::npos)
      return false;
  }
  return true;
}

[[noreturn]] void refuse(const char* flag, std::string_view instead) {
  throw CLI::ValidationError(
      flag,
      fmt::format("a flag of torchrun that lockstep run does not have; {}",
                  instead));
}

// Those for which torchrun reads a variable of the environment.
constexpr const char* kShutdownTimeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";

constexpr std::array<const char*, 28> kWithVariable{
    "--nnodes",
    "--nproc-per-node",
    "--rdzv-backend",
    "--rdzv-endpoint",
    "--rdzv-id",
    "--rdzv-conf",
    "--standalone",
    "--max-restarts",
    "--monitor-interval",
    "--start-method",
    "--event-log-handler",
    "--role",
    "--module",
    "--no-python",
    "--run-path",
    "--log-dir",
    "--redirects",
    "--tee",
    "--local-ranks-filter",
    "--duplicate-stdout-filters",
    "--duplicate-stderr-filters",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--local-addr",
    "--signals-to-handle",
    "--shutdown-timeout",
    "--virtual-local-rank",
};

// "PET_NNODES" for "--nnodes".
std::string variable_of(std::string_view flag) {
  std::string name = "PET_";
  for (const char letter : flag.substr(2))
    name += letter == '-' ? '_'
                          : static_cast<char>(std::toupper(
                                static_cast<unsigned char>(letter)));
  return name;
}

}  // namespace

void add_torchrun_flags(CLI::App& command) {
  command
      .add_option_function<double>(
          "--monitor-interval", [](double) {},
          "No effect: the launcher hears of a rank's end at once; accepted for "
          "torchrun's users")
      ->check(positive_number())
      ->type_name("SECONDS");
  constexpr std::array<std::string_view, 3> kMethods{"spawn", "fork",
                                                     "forkserver"};
  command
      .add_option_function<std::string>(
          "--start-method", [](const std::string&) {},
          "No effect, as for a program in torchrun; accepted for its users")
      ->check(one_of("start method", kMethods))
      ->type_name("METHOD");
  command
      .add_flag_callback("--run-path",
                         [] {
                           refuse("--run-path",
                                  "leave it out, and python3 runs the script");
                         })
      ->group("");
  for (const ForeignFlag& flag : kForeignFlags)
    command
        .add_option_function<std::string>(flag.name,
                                          [&flag](const std::string& value) {
                                            if (!is_harmless(flag, value))
                                              refuse(flag.name, flag.instead);
                                          })
        ->group("");
}

void take_defaults_from_environment(CLI::App& command) {
  for (const char* flag : kWithVariable)
    command.get_option(flag)->envname(variable_of(flag));
  if (environment_variable("PET_SHUTDOWN_TIMEOUT").value_or("").empty())
    command.get_option("--shutdown-timeout")->envname(kShutdownTimeout);
}

bool is_typed(const CLI::App& command, const std::string& flag) {
  const CLI::Option& option = *command.get_option(flag);
  if (option.count() == 0) return false;
  const auto value = environment_variable(option.get_envname());
  return !value || option.results().front() != *value;
}

std::vector<std::string> variables_with_defaults(
    const EnvironmentLookup& lookup) {
  std::vector<std::string> names;
  for (const char* flag : kWithVariable) names.push_back(variable_of(flag));
  names.emplace_back(kShutdownTimeout);
  std::vector<std::string> variables;
  for (const std::string& name : names) {
    const auto value = lookup(name);
    if (value && !value->empty())
      variables.push_back(fmt::format("{}={}", name, *value));
  }
  return variables;
}

}  // namespace lockstep
