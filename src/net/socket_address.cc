#include "src/net/socket_address.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <system_error>

#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

// The bytes are copied out: the two structs may not be aliased by a cast.
template <class Sockaddr>
Sockaddr as(const sockaddr_storage& storage) {
  Sockaddr address{};
  std::memcpy(&address, &storage, sizeof address);
  return address;
}

bool is_loopback_v6(const in6_addr& address) {
  if (IN6_IS_ADDR_LOOPBACK(&address)) return true;
  return IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127;
}

}  // namespace

int SocketAddress::port() const {
  if (storage.ss_family == AF_INET6)
    return ntohs(as<sockaddr_in6>(storage).sin6_port);
  return ntohs(as<sockaddr_in>(storage).sin_port);
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6)
    return is_loopback_v6(as<sockaddr_in6>(storage).sin6_addr);
  return ntohl(as<sockaddr_in>(storage).sin_addr.s_addr) >> 24 == 127;
}

std::string SocketAddress::host() const {
  std::array<char, NI_MAXHOST> host{};
  if (::getnameinfo(get(), length, host.data(), host.size(), nullptr, 0,
                    NI_NUMERICHOST) != 0)
    return "unknown address";
  return host.data();
}

std::string SocketAddress::text() const {
  return host_and_port(host(), port());
}

SocketAddress SocketAddress::at_port(int port) const {
  SocketAddress moved = *this;
  // Both kinds of address have the port in the same place.
  static_assert(offsetof(sockaddr_in6, sin6_port) ==
                offsetof(sockaddr_in, sin_port));
  const in_port_t number = htons(static_cast<std::uint16_t>(port));
  std::memcpy(reinterpret_cast<std::byte*>(&moved.storage) +
                  offsetof(sockaddr_in, sin_port),
              &number, sizeof number);
  return moved;
}

std::vector<SocketAddress> resolve(const std::string& host, int port) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), fmt::to_string(port).c_str(),
                                   &wanted, &found);
  if (status != 0) {
    const std::string reason = status == EAI_SYSTEM
                                   ? std::generic_category().message(errno)
                                   : ::gai_strerror(status);
    // This may also mean that the resolver's files could not be opened.
    const FileDescriptor probe(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!probe && (errno == EMFILE || errno == ENFILE))
      throw SystemError(
          fmt::format("could not find the address of host \"{}\"", host),
          errno);
    throw NetworkError(fmt::format(
        "could not find the address of host \"{}\": {}\n"
        "  next:    check the name's spelling, /etc/hosts and the name server",
        host, reason));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(
      found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.length = each->ai_addrlen;
  }
  return addresses;
}

bool is_loopback_everywhere(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (::inet_pton(AF_INET, host.c_str(), &v4) == 1)
    return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return ::inet_pton(AF_INET6, host.c_str(), &v6) == 1 && is_loopback_v6(v6);
}

bool has_one_of(const std::vector<SocketAddress>& addresses) {
  return std::ranges::any_of(addresses, [](const SocketAddress& address) {
    // A datagram socket, so a used port does not matter.
    const FileDescriptor probe(
        ::socket(address.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return probe && (::bind(probe.get(), address.get(), address.length) == 0 ||
                     errno == EADDRINUSE || errno == EACCES);
  });
}

SocketAddress local_address(int descriptor) {
  SocketAddress address;
  address.length = sizeof address.storage;
  if (::getsockname(descriptor, reinterpret_cast<sockaddr*>(&address.storage),
                    &address.length) != 0)
    throw SystemError("could not read a socket's own address", errno);
  return address;
}

std::string host_and_port(const std::string& host, int port) {
  if (host.find(':') != std::string::npos)
    return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

}  // namespace lockstep
