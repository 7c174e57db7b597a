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

#include "lockstep/tools/doctor_findings.h"

namespace lockstep {
namespace {

struct Interface {
  std::string name;
  std::string address;
};

// Those that are up, have an IPv4 address and lead beyond this host.
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

// The interface of the default route, "" when there is none.
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

Finding examine_network() {
  const std::vector<Interface> found = interfaces();
  Finding finding{.topic = "network"};
  if (found.empty()) {
    finding.text = "loopback only: this host trains alone";
    return finding;
  }
  const std::string preferred = default_interface();
  for (const Interface& interface : found)
    finding.text +=
        fmt::format("{}{} {}{}", finding.text.empty() ? "" : ", ",
                    interface.name, interface.address,
                    interface.name == preferred ? " (the default route)" : "");
  return finding;
}

}  // namespace lockstep
