// A socket's IPv4 or IPv6 address and port.
//
// Errors:  NetworkError when a host's name cannot be resolved.
#pragma once

#include <sys/socket.h>

#include <string>
#include <vector>

namespace lockstep {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  int port() const;

  // Whether only this host can reach it.
  bool is_loopback() const;

  // The number of the host, "10.0.0.1" or "fe80::1".
  std::string host() const;

  // "10.0.0.1:29500" or "[fe80::1]:29500".
  std::string text() const;

  // The same host's address with another port.
  SocketAddress at_port(int port) const;
};

// Every address of `host` (a name or a number), best first. The system's
// resolver takes no deadline: a name server that does not answer can delay it
// for about ten seconds.
std::vector<SocketAddress> resolve(const std::string& host, int port);

// Whether `host` means loopback on every host: "localhost" or a numeric
// loopback address. A host's own name may resolve to loopback on that host and
// to a real address elsewhere.
bool is_loopback_everywhere(const std::string& host);

// Whether this host has one of these addresses.
bool has_one_of(const std::vector<SocketAddress>& addresses);

// The address that the socket `descriptor` is bound to.
SocketAddress local_address(int descriptor);

// "host:port", with brackets around an IPv6 number.
std::string host_and_port(const std::string& host, int port);

}  // namespace lockstep
