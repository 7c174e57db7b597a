#include "src/net/free_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <random>

#include "lockstep/base/error.h"
#include "src/base/secret.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

constexpr int kLastPort = 65535;

FileDescriptor make_socket() {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw SystemError("could not make a socket", errno);
  return socket;
}

sockaddr_in any_address(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(port);
  return address;
}

// errno of the attempt to bind; 0 on success.
int try_port(std::uint16_t port) {
  const FileDescriptor socket = make_socket();
  const sockaddr_in address = any_address(port);
  const int result =
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address),
             sizeof address);
  return result == 0 ? 0 : errno;
}

std::uint16_t kernels_choice() {
  const FileDescriptor socket = make_socket();
  sockaddr_in address = any_address(0);
  socklen_t size = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size) !=
          0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address),
                    &size) != 0)
    throw NetworkError("no TCP port is free on this host");
  return ntohs(address.sin_port);
}

struct PortRange {
  int first = 0;
  int last = 0;
};

// The larger of the two ranges outside the kernel's ephemeral range, without
// the lowest ports, which belong to well-known services.
PortRange quiet_ports() {
  constexpr int kFirst = 10'000;
  PortRange kernels{32'768, 60'999};
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> kernels.first >>
      kernels.last;
  const PortRange below{kFirst, kernels.first - 1};
  const PortRange above{kernels.last + 1, kLastPort};
  return below.last - below.first > above.last - above.first ? below : above;
}

}  // namespace

std::uint16_t find_free_port() {
  constexpr int kTries = 100;
  const PortRange ports = quiet_ports();
  if (ports.first > ports.last) return kernels_choice();
  // Not seeded by the user, because two jobs with one seed must not choose the
  // same port.
  std::mt19937_64 random(random_value<std::uint64_t>());
  std::uniform_int_distribution<int> choose(ports.first, ports.last);
  for (int i = 0; i < kTries; ++i) {
    const auto port = static_cast<std::uint16_t>(choose(random));
    if (try_port(port) == 0) return port;
  }
  return kernels_choice();
}

void check_port_is_free(std::uint16_t port) {
  const int error = try_port(port);
  if (error == EADDRINUSE)
    throw NetworkError(
        fmt::format("port {} is in use by another program: choose another, or "
                    "leave it out to get a free one",
                    port));
  if (error != 0)
    throw SystemError(fmt::format("port {} cannot be used", port), error);
}

}  // namespace lockstep
