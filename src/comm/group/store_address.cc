#include "src/comm/group/store_address.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {
namespace {

// Rank 0 serves at a name of its own host, which it must know, unless
// LOCKSTEP_STORE_BIND gives the address to listen at, as behind a proxy. (The
// others wait for the name, as for the store.)
void check_that_own_name_is_known(const TcpEndpoint& endpoint) try {
  resolve(endpoint.host, endpoint.port);
} catch (const NetworkError& error) {
  throw NetworkError(fmt::format(
      "init_process_group: {} (MASTER_ADDR, or the init method, gives it)",
      error.what()));
}

bool is_loopback_here(const TcpEndpoint& endpoint) {
  return std::ranges::all_of(
      resolve(endpoint.host, endpoint.port),
      [](const SocketAddress& address) { return address.is_loopback(); });
}

// Whether the launcher says that this rank is not on rank 0's host. Only
// torchrun numbers the ranks host by host; with --virtual-local-rank every
// local rank is 0.
bool is_surely_elsewhere(const Settings& settings) {
  if (settings.launcher != StartedBy::kTorchrun || !settings.rank ||
      !settings.local_rank || *settings.rank == *settings.local_rank)
    return false;
  return *settings.local_rank != 0 ||
         *settings.rank >= settings.local_world_size.value_or(1);
}

}  // namespace

void check_store_address(const Membership& membership,
                         const Settings& settings) {
  const TcpEndpoint endpoint = parse_tcp_url(membership.store_url);
  if (endpoint.port == 0 && membership.world_size > 1)
    throw InvalidArgument(
        "init_process_group: the port of rank 0's store is 0, which the other "
        "ranks cannot find\n  next:    set MASTER_PORT, or the port of "
        "tcp://, to the same free port on every rank");
  if (membership.serves_store && settings.store_bind.empty())
    check_that_own_name_is_known(endpoint);
  if (!settings.local_world_size ||
      *settings.local_world_size >= membership.world_size)
    return;
  if (!settings.store_bind.empty() &&
      is_loopback_everywhere(settings.store_bind))
    return;
  if (!is_loopback_everywhere(endpoint.host) &&
      !(is_surely_elsewhere(settings) && is_loopback_here(endpoint)))
    return;
  throw InvalidArgument(fmt::format(
      "init_process_group: rank {} of {} cannot reach rank 0's store at {}: "
      "that is this host's own loopback address, and the ranks are on several "
      "hosts ({} of them on this one)\n"
      "  next:    set MASTER_ADDR to a name or address of rank 0's host that "
      "the other hosts can reach; if all ranks are on this host after all, set "
      "LOCKSTEP_STORE_BIND=127.0.0.1 on every rank",
      membership.rank, membership.world_size,
      host_and_port(endpoint.host, endpoint.port), *settings.local_world_size));
}

}  // namespace lockstep
