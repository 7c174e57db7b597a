// TCP sockets: listening, accepting and connecting. All sockets are
// non-blocking and close-on-exec.
//
// Threads: every function may be called from any thread.
// Errors:  NetworkError naming host, port, reason and next step; Timeout and
//          Cancelled from connect_to; SystemError when the process is out of
//          file descriptors (retrying does not help).
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"
#include "src/net/socket_address.h"

namespace lockstep {

// Another socket holds the port.
class PortTaken : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// A socket that listens only at the address of `host`. Port 0 lets the kernel
// choose (see local_address). PortTaken where another socket has the port.
FileDescriptor listen_at(const std::string& host, int port);

// A socket that listens at all addresses of this host, IPv6 and IPv4.
FileDescriptor listen_everywhere(int port);

// The next pending connection of `listener`; invalid when no connection is
// pending. SystemError when the process is out of file descriptors or memory.
FileDescriptor accept_from(int listener);

// The host answers, but no process listens at the port.
class ConnectionRefused : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// Connects to the first address of `host` that answers, trying each once.
// ConnectionRefused if the last one refused.
FileDescriptor connect_once(const std::string& host, int port,
                            Deadline deadline,
                            const Cancellation* cancellation = nullptr);

// The same with one address.
FileDescriptor connect_once(const SocketAddress& address, Deadline deadline);

// A connection that is being made; invalid, with an errno value, if that failed
// at once.
struct BegunConnection {
  FileDescriptor socket{};
  int error = 0;
};

// Begins to connect to the numeric address `address`, and does not wait. The
// socket becomes writable once the attempt has ended; connect_error() then says
// how.
BegunConnection begin_to_connect(const std::string& address, int port);

// The errno value with which the attempt of `socket`, which has ended, failed;
// 0 if `socket` is connected.
int connect_error(int socket);

// Like connect_once, but retries until `deadline`, because the server may start
// later. Logs one warning after `warn_after`.
FileDescriptor connect_to(
    const std::string& host, int port, Deadline deadline,
    const Cancellation* cancellation = nullptr,
    std::chrono::nanoseconds warn_after = std::chrono::seconds(10));

// The result of one non-blocking read or write.
struct Transfer {
  std::size_t bytes = 0;
  bool ended = false;  // the connection is closed or broken
};

// Reads the bytes that have arrived, at most room.size(); 0 when none have.
Transfer receive_some(int socket, std::span<std::byte> room);

// Writes as many bytes as the socket's buffer takes; never raises SIGPIPE.
Transfer send_some(int socket, std::span<const std::byte> data);

}  // namespace lockstep
