// Abstract Unix sockets, over which processes of one host pass each other file
// descriptors.
//
// The kernel chooses the name, which vanishes with the socket: nothing is left
// in any folder. Abstract names are per network namespace, so two processes can
// reach each other exactly when they are on one host in the sense that matters.
//
// Threads: one object, one thread at a time.
// Errors:  NetworkError when the peer is unreachable or gone, Timeout when the
//          deadline passes, SystemError for what the kernel refused.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// One end of a connection. Messages keep their borders.
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
  // Waits while the user has as many descriptors on their way as it may.
  void send(std::span<const std::byte> bytes, std::span<const int> descriptors,
            Deadline deadline);

  // The next message; NetworkError once the peer has closed.
  Message receive(Deadline deadline);

  // The number of the user that the other end's process ran as when it
  // connected, or began to listen.
  uid_t peer_user() const;

  // Whether that is this process's user. Never for a user that has no number in
  // this process's user namespace.
  bool is_of_own_user() const;

  int descriptor() const { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

class UnixListener {
 public:
  // Listens under a name that the kernel chooses.
  UnixListener();

  // What connect_unix() takes.
  const std::string& name() const { return name_; }

  int descriptor() const { return socket_.get(); }

  // A connection that is waiting already, or none. SystemError when the process
  // is out of file descriptors or memory.
  FileDescriptor accept();

 private:
  FileDescriptor socket_;
  std::string name_;
};

// NetworkError when nobody of this host listens under `name`. Waits while too
// many others do who have not been accepted.
UnixConnection connect_unix(const std::string& name, Deadline deadline);

}  // namespace lockstep
