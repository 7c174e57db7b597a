#include "src/net/unix_mark.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "lockstep/base/error.h"
#include "src/base/secret.h"
#include "src/net/parents_sockets.h"

namespace lockstep {
namespace {

constexpr std::size_t kRandomBytes = 16;

struct AbstractAddress {
  sockaddr_un storage{};
  socklen_t length = 0;

  explicit AbstractAddress(const std::string& name) {
    storage.sun_family = AF_UNIX;
    // The leading zero makes the name abstract.
    const std::size_t size = std::min(name.size(), sizeof storage.sun_path - 1);
    std::memcpy(storage.sun_path + 1, name.data(), size);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  }
  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
};

FileDescriptor open_datagram_socket() {
  FileDescriptor socket = keep_from_children([] {
    return FileDescriptor(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  });
  if (!socket) throw SystemError("could not create a Unix socket", errno);
  return socket;
}

}  // namespace

UnixMark::UnixMark()
    : name_("lockstep-" + random_hex(kRandomBytes)),
      socket_(open_datagram_socket()) {
  const AbstractAddress address(name_);
  if (::bind(socket_.get(), address.get(), address.length) != 0)
    throw SystemError("could not give a Unix socket a name", errno);
}

// A datagram socket connects exactly when the name is bound.
bool is_marked_here(const std::string& name) {
  const FileDescriptor socket = open_datagram_socket();
  const AbstractAddress address(name);
  return ::connect(socket.get(), address.get(), address.length) == 0;
}

}  // namespace lockstep
