#include "src/base/settings.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/base/process_environment.h"
#include "src/base/transport_names.h"

namespace lockstep {
namespace {

constexpr std::array<NamedValue<OperationCheck>, 3> kChecks{{
    {"all", OperationCheck::kAll},
    {"small", OperationCheck::kSmall},
    {"off", OperationCheck::kOff},
}};

OperationCheck parse_operation_check(const std::string& text) {
  for (const auto& check : kChecks)
    if (text == check.name) return check.value;
  throw InvalidArgument("the environment variable LOCKSTEP_CHECK is \"" + text +
                        "\"; it must be " + list_names(kChecks));
}

std::string parse_wire(const std::string& text) {
  if (find_transport(text) != nullptr) return text;
  throw InvalidArgument("the environment variable LOCKSTEP_WIRE is \"" + text +
                        "\"; it must be " + list_names(kTransports));
}

void read_network(const EnvironmentLookup& lookup, Settings& settings) {
  settings.store_bind = lookup("LOCKSTEP_STORE_BIND").value_or("");
  settings.interface = lookup("LOCKSTEP_INTERFACE").value_or("");
  settings.plugin_path = lookup("LOCKSTEP_PLUGIN_PATH").value_or("");
  settings.wire = parse_wire(lookup("LOCKSTEP_WIRE").value_or(settings.wire));
  settings.host_id = lookup("LOCKSTEP_HOST_ID").value_or("");
  settings.share_gpus =
      read_integer(lookup, "LOCKSTEP_SHARE_GPUS", 0, 1).value_or(0) == 1;
  if (const auto check = lookup("LOCKSTEP_CHECK"))
    settings.check = parse_operation_check(*check);
}

}  // namespace

std::string_view name_of(OperationCheck check) {
  return name_of(kChecks, check);
}

Settings Settings::read(const EnvironmentLookup& environment) {
  const EnvironmentLookup lookup = without_empty(environment);
  using Seconds = std::chrono::duration<double>;
  constexpr double kYear = 365.0 * 24 * 3600;
  Settings settings;
  static_cast<RankEnvironment&>(settings) = read_rank_environment(lookup);
  settings.store = lookup("LOCKSTEP_STORE");
  settings.token = lookup("LOCKSTEP_TOKEN").value_or("");
  settings.backend = lookup("LOCKSTEP_BACKEND").value_or(settings.backend);
  if (const auto s = read_real(lookup, "LOCKSTEP_TIMEOUT", 0.001, kYear))
    settings.timeout = Seconds(*s);
  if (const auto s =
          read_real(lookup, "LOCKSTEP_RENDEZVOUS_TIMEOUT", 0.001, kYear))
    settings.rendezvous_timeout = Seconds(*s);
  if (const auto s = read_real(lookup, "LOCKSTEP_STALL_WARNING", 0.001, kYear))
    settings.stall_warning = Seconds(*s);
  settings.dump_directory = lookup("LOCKSTEP_DUMP_DIR").value_or("");
  settings.fault_file = lookup("LOCKSTEP_FAULT_FILE").value_or("");
  settings.steps_file = lookup("LOCKSTEP_STEPS_FILE").value_or("");
  if (const auto slot = read_integer(lookup, "LOCKSTEP_STEPS_SLOT", 0,
                                     std::numeric_limits<int>::max()))
    settings.steps_slot = static_cast<int>(*slot);
  else
    settings.steps_file.clear();  // an older launcher: all ranks in one slot
  if (const auto bytes = read_integer(lookup, "LOCKSTEP_HEAP_BYTES", 0,
                                      std::numeric_limits<std::int64_t>::max()))
    settings.heap_bytes = static_cast<std::size_t>(*bytes);
  if (const auto bytes = read_integer(lookup, "LOCKSTEP_HEAP_KEPT_BYTES", 0,
                                      std::numeric_limits<std::int64_t>::max()))
    settings.heap_kept_bytes = static_cast<std::size_t>(*bytes);
  if (const auto fd = read_integer(lookup, "LOCKSTEP_PROGRESS_FD", 0,
                                   std::numeric_limits<int>::max()))
    settings.progress_fd = static_cast<int>(*fd);
  read_network(lookup, settings);
  if (const auto level = lookup("LOCKSTEP_LOG"))
    settings.log_level = parse_log_level(*level);
  return settings;
}

int Settings::gpu_of_rank(const std::function<int()>& count) const {
  const int own = local_rank.value_or(0);
  return share_gpus ? own % std::max(1, count()) : own;
}

Settings Settings::from_environment() { return read(environment_variable); }

}  // namespace lockstep
