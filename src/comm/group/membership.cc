#include "src/comm/group/membership.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {
namespace {

// A number beyond it is a mistake, and lists of its ranks would not fit.
constexpr int kMostRanks = 1 << 16;

// The value of `chosen` or `from_environment`; InvalidArgument if they
// contradict each other.
std::optional<int> agree(const char* name, std::optional<int> chosen,
                         std::optional<int> from_environment,
                         StartedBy launcher) {
  if (chosen && from_environment && *chosen != *from_environment)
    throw InvalidArgument(fmt::format(
        "init_process_group: {} is {}, but the environment says {} ({}); drop "
        "one of them",
        name, *chosen, *from_environment, name_of(launcher)));
  return chosen ? chosen : from_environment;
}

bool is_mpirun(StartedBy launcher) {
  return launcher == StartedBy::kMpirun || launcher == StartedBy::kHydra;
}

void check_launchers_store(const std::string& url) try {
  check_store_url(url);
} catch (const InvalidArgument& error) {
  throw InvalidArgument(
      fmt::format("the environment variable LOCKSTEP_STORE: {}", error.what()));
}

// For env://: the launcher's store, or the one that rank 0 serves at
// MASTER_ADDR and MASTER_PORT.
void find_store(const Settings& settings, Membership& membership) {
  if (settings.store) {
    membership.store_url = *settings.store;
    return check_launchers_store(*settings.store);
  }
  if (!settings.master_address && is_mpirun(settings.launcher)) {
    membership.store_url.clear();
    membership.needs_bootstrap = true;
    return;
  }
  if (!settings.master_address || !settings.master_port)
    throw InvalidArgument(fmt::format(
        "init_process_group: this is rank {} of {}, but {} is not set, so the "
        "ranks cannot find each other\n"
        "  next:    start the program with `lockstep run -n {} PROGRAM`, or "
        "set MASTER_ADDR and MASTER_PORT on every rank",
        membership.rank, membership.world_size,
        settings.master_address ? "MASTER_PORT" : "MASTER_ADDR",
        membership.world_size));
  membership.store_url =
      "tcp://" + host_and_port(*settings.master_address, *settings.master_port);
  membership.more_ports = settings.more_ports;
  membership.rank_zero_serves = true;
}

}  // namespace

Membership resolve_membership(const InitOptions& options,
                              const Settings& settings) {
  const auto rank =
      agree("rank", options.rank, settings.rank, settings.launcher);
  const auto size = agree("world_size", options.world_size, settings.world_size,
                          settings.launcher);
  const bool from_environment = options.init_method == "env://";
  if (rank.has_value() != size.has_value())
    throw InvalidArgument(fmt::format(
        "init_process_group: {} is known but {} is not; give both, or neither "
        "for a world of one (RANK and WORLD_SIZE, or the options)",
        rank ? "rank" : "world_size", rank ? "world_size" : "rank"));
  if (!rank && !from_environment)
    throw InvalidArgument(fmt::format(
        "init_process_group: the init method {} needs world_size and rank",
        options.init_method));
  Membership membership{.rank = rank.value_or(0),
                        .world_size = size.value_or(1)};
  if (membership.world_size < 1 || membership.rank < 0 ||
      membership.rank >= membership.world_size)
    throw InvalidArgument(fmt::format(
        "init_process_group: rank {} of world_size {}; ranks count from 0 to "
        "world_size - 1",
        membership.rank, membership.world_size));
  if (membership.world_size > kMostRanks)
    throw InvalidArgument(fmt::format(
        "init_process_group: a world of {} ranks; it may have at most {}",
        membership.world_size, kMostRanks));
  if (membership.world_size == 1) return membership;
  if (from_environment) {
    find_store(settings, membership);
  } else {
    membership.store_url = options.init_method;
    membership.rank_zero_serves = options.init_method.starts_with("tcp://");
  }
  membership.serves_store = membership.rank_zero_serves && membership.rank == 0;
  return membership;
}

}  // namespace lockstep
