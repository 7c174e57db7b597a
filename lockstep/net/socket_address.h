// Where a socket can be reached: an IPv4 or IPv6 address and a port.
//
// Threads: a value.
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

  // "10.0.0.1:29500" or "[fe80::1]:29500".
  std::string text() const;
};

// Every address of `host` (a name or a number), best first. Asks the system's
// resolver, which has no deadline: a name server that does not answer can hold
// it for some ten seconds.
std::vector<SocketAddress> resolve(const std::string& host, int port);

// Whether every host takes `host` for itself: "localhost" or the number of a
// loopback address. A host's own name may mean loopback there and the host
// elsewhere.
bool is_loopback_everywhere(const std::string& host);

// Whether this host has one of these addresses.
bool has_one_of(const std::vector<SocketAddress>& addresses);

// The address that the socket `descriptor` is bound to.
SocketAddress local_address(int descriptor);

// "host:port", with brackets around an IPv6 number.
std::string host_and_port(const std::string& host, int port);

}  // namespace lockstep
