#include "src/store/host_address.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <optional>
#include <set>

#include "lockstep/base/error.h"
#include "src/base/log.h"
#include "src/net/file_descriptor.h"
#include "src/net/socket_address.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// The host part of an address, in numeric form.
std::string number_of(const sockaddr* address, socklen_t length) {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(address, length, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "";
  return host.data();
}

struct Interface {
  std::string name;
  std::string address;
  bool is_up = false;
  bool is_loopback = false;
  int family = 0;
};

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(
      first, &::freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length =
        family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    found.push_back({each->ifa_name, number_of(each->ifa_addr, length),
                     (each->ifa_flags & IFF_UP) != 0,
                     (each->ifa_flags & IFF_LOOPBACK) != 0, family});
  }
  return found;
}

std::string address_of_interface(const std::string& wanted) {
  std::set<std::string> names;
  std::optional<std::string> found;
  for (const Interface& each : interfaces()) {
    names.insert(each.name);
    if (each.name != wanted && each.address != wanted) continue;
    if (!found || each.family == AF_INET) found = each.address;
  }
  if (found) return *found;
  throw InvalidArgument(fmt::format(
      "this host has no interface or address \"{}\" (LOCKSTEP_INTERFACE, "
      "--local-addr)\n  next:    name one of: {}",
      wanted, fmt::join(names, ", ")));
}

// Asks the kernel for the address from which it would send to `host`; sends
// nothing.
std::optional<std::string> address_towards(const std::string& host, int port) {
  try {
    for (const SocketAddress& address : resolve(host, port)) {
      const FileDescriptor probe(
          ::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      if (::connect(probe.get(), address.get(), address.length) != 0) continue;
      const SocketAddress own = local_address(probe.get());
      return number_of(own.get(), own.length);
    }
  } catch (const Error&) {
    return std::nullopt;
  }
  return std::nullopt;
}

// The address of the store, if it has one.
std::optional<TcpEndpoint> store_endpoint(const Settings& settings) {
  if (settings.store && settings.store->starts_with(kTcpScheme))
    return parse_tcp_url(*settings.store);
  if (settings.master_address)
    return TcpEndpoint{*settings.master_address,
                       settings.master_port.value_or(9)};
  return std::nullopt;
}

std::string routed_address(const Settings& settings) {
  // Ranks that share memory are on one host; those that share a file may not
  // be, and the launcher may say that some are not.
  bool may_be_elsewhere = settings.store.value_or("").starts_with("file:") ||
                          (settings.world_size && settings.local_world_size &&
                           *settings.local_world_size < *settings.world_size);
  if (const auto endpoint = store_endpoint(settings))
    if (auto own = address_towards(endpoint->host, endpoint->port)) {
      if (!is_loopback_everywhere(*own)) return *own;
      // On other hosts, rank 0's own name may resolve to another address.
      may_be_elsewhere |= !is_loopback_everywhere(endpoint->host);
    }
  if (!may_be_elsewhere) return kLoopback;
  for (const Interface& each : interfaces())
    if (each.is_up && !each.is_loopback && each.family == AF_INET)
      return each.address;
  return kLoopback;
}

}  // namespace

std::string own_host_name() {
  std::array<char, 64> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string choose_host_address(const Settings& settings) {
  std::string address = settings.interface.empty()
                            ? routed_address(settings)
                            : address_of_interface(settings.interface);
  if (log_enabled(LogLevel::kDebug))
    log(LogLevel::kDebug,
        fmt::format("other ranks reach this one at {}{}", address,
                    settings.interface.empty() ? "" : " (LOCKSTEP_INTERFACE)"));
  return address;
}

}  // namespace lockstep
