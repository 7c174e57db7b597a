#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "apps/doctor/doctor_findings.h"
#include "lockstep/base/error.h"
#include "src/base/first_line.h"
#include "src/net/free_port.h"
#include "src/net/socket.h"
#include "src/net/socket_address.h"
#include "src/store/host_address.h"
#include "src/store/tcp_endpoint.h"

namespace lockstep {
namespace {

struct Interface {
  std::string name;
  std::string address;
};

// The interfaces that are up, have an IPv4 address and are not loopback.
std::vector<Interface> interfaces() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  std::vector<Interface> found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    const bool usable =
        at->ifa_addr != nullptr && at->ifa_addr->sa_family == AF_INET &&
        (at->ifa_flags & IFF_UP) != 0 && (at->ifa_flags & IFF_LOOPBACK) == 0;
    if (!usable) continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    ::inet_ntop(AF_INET,
                &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr,
                text.data(), text.size());
    found.push_back({at->ifa_name, text.data()});
  }
  ::freeifaddrs(list);
  return found;
}

// The interface of the default route; "" without a default route.
std::string default_interface() {
  std::ifstream table("/proc/net/route");
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string name, destination;
    if (fields >> name >> destination && destination == "00000000") return name;
  }
  return "";
}

// How many ports the kernel gives to connections; 0 where it does not tell.
int ports_for_connections() {
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  int first = 0, last = 0;
  return range >> first >> last ? last - first + 1 : 0;
}

bool is_free(std::uint16_t port) {
  try {
    check_port_is_free(port);
    return true;
  } catch (const NetworkError&) {
    return false;
  }
}

// Why this host cannot connect to itself, as the ranks on it do; "" if it can.
std::string fault_of_loopback() {
  constexpr auto kLoopback = "127.0.0.1";
  try {
    const FileDescriptor listener = listen_at(kLoopback, 0);
    connect_once(kLoopback, local_address(listener.get()).port(),
                 Deadline(std::chrono::seconds(1)));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

Finding examine_ports(const Settings& settings) {
  // A connection per pair of hosts, and a few per rank: those of a large job.
  constexpr int kFewPorts = 4096;
  Finding finding{.topic = "ports"};
  if (const int ports = ports_for_connections(); ports > 0) {
    finding.text = fmt::format("{} for connections", ports);
    if (ports < kFewPorts) {
      finding.health = Health::kLimited;
      finding.next =
          "widen the range in sysctl net.ipv4.ip_local_port_range for large "
          "jobs";
    }
  }
  if (settings.world_size.value_or(1) > 1) return finding;  // they are in use
  const auto examine = [&](std::uint16_t port, std::string_view what,
                           std::string_view next) {
    const bool free = is_free(port);
    finding.text +=
        fmt::format("{}{} ({}) is {}", finding.text.empty() ? "" : "; ", port,
                    what, free ? "free" : "taken by another program");
    if (free) return;
    finding.health = Health::kLimited;
    finding.next = next;
  };
  examine(
      kEndpointPort, "where launchers meet",
      "where this host is that of --rdzv-endpoint, give another port there");
  examine(
      static_cast<std::uint16_t>(settings.master_port.value_or(kMasterPort)),
      "MASTER_PORT",
      "give another MASTER_PORT, or start ranks with lockstep run, which "
      "finds a free one");
  return finding;
}

Finding examine_network(const Settings& settings) {
  Finding finding{.topic = "network"};
  const std::string preferred = default_interface();
  for (const Interface& interface : interfaces())
    finding.text +=
        fmt::format("{} {}{}, ", interface.name, interface.address,
                    interface.name == preferred ? " (the default route)" : "");
  if (const std::string fault = fault_of_loopback(); !fault.empty()) {
    finding.health = Health::kBad;
    finding.text +=
        "ranks of this host cannot reach each other: " + first_line(fault);
    finding.next =
        "bring up the loopback interface (ip link set lo up), or look for a "
        "rule of the firewall about it";
    return finding;
  }
  if (finding.text.empty()) finding.text = "no interface but loopback, ";
  try {
    finding.text += fmt::format("of which ranks here would use {}",
                                choose_host_address(settings));
  } catch (const InvalidArgument&) {
    finding.health = Health::kLimited;
    finding.text += "and LOCKSTEP_INTERFACE names none of them";
    finding.next = fmt::format(
        "set LOCKSTEP_INTERFACE to one of them: it is "
        "\"{}\"",
        settings.interface);
    return finding;
  }
  if (settings.interface.empty() && !settings.store && !settings.master_address)
    finding.text +=
        "; with a MASTER_ADDR, the one that routes there, unless "
        "LOCKSTEP_INTERFACE names another";
  return finding;
}

}  // namespace lockstep
