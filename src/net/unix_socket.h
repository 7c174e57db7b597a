// Abstract Unix sockets, over which processes of one host pass each other file
// descriptors.
//
// The kernel chooses the name, which vanishes with the socket: no file is left
// behind. Abstract names are per network namespace, so two processes reach each
// other exactly when they share one.
//
// Threads: one thread at a time per object.
// Errors:  NetworkError when the peer is unreachable or gone, Timeout when the
//          deadline passes, SystemError when the kernel refuses a call.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/net/file_descriptor.h"

namespace lockstep {

// One end of a connection that preserves message boundaries.
class UnixConnection {
 public:
  static constexpr std::size_t kMaxMessageBytes = 64 << 10;
  static constexpr std::size_t kMaxDescriptors = 8;  // in one message

  struct Message {
    std::vector<std::byte> bytes;
    std::vector<FileDescriptor> descriptors;
  };

  UnixConnection() = default;
  explicit UnixConnection(FileDescriptor socket) : socket_(std::move(socket)) {}

  // Sends `bytes` (not empty) and duplicates of `descriptors` to the peer.
  // Waits while the user has reached the limit on descriptors in flight.
  void send(std::span<const std::byte> bytes, std::span<const int> descriptors,
            Deadline deadline);

  // Waits for the next message; NetworkError once the peer has closed.
  Message receive(Deadline deadline);

  // The user id of the peer's process when it connected or began to listen.
  uid_t peer_user() const;

  // Whether the peer's user is this process's user. False for a user without an
  // id in this process's user namespace.
  bool is_of_own_user() const;

  int descriptor() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

class UnixListener {
 public:
  // Listens under a name that the kernel chooses.
  UnixListener();

  // The name to pass to connect_unix().
  const std::string& name() const { return name_; }

  int descriptor() const { return socket_.get(); }

  // A pending connection, or an invalid descriptor when none is pending.
  // SystemError when the process is out of file descriptors or memory.
  FileDescriptor accept();

 private:
  FileDescriptor socket_;
  std::string name_;
};

// NetworkError when no socket on this host listens under `name`. Waits while
// the listener's backlog is full.
UnixConnection connect_unix(const std::string& name, Deadline deadline);

}  // namespace lockstep
