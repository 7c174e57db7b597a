#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <array>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/store/host_address.h"
#include "src/tools/doctor/doctor_findings.h"

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

}  // namespace

Finding examine_network(const Settings& settings) {
  Finding finding{.topic = "network"};
  const std::string preferred = default_interface();
  for (const Interface& interface : interfaces())
    finding.text +=
        fmt::format("{} {}{}, ", interface.name, interface.address,
                    interface.name == preferred ? " (the default route)" : "");
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
