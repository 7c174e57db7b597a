// TCP sockets: listening, accepting and connecting. All of them are
// non-blocking and close themselves in a program that this process executes.
//
// Threads: every function may be called from any thread.
// Errors:  NetworkError naming host, port, reason and next step; Timeout and
//          Cancelled from connect_to; SystemError when the process is out of
//          file descriptors, which no waiting helps.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>

#include "lockstep/base/cancellation.h"
#include "lockstep/base/deadline.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// A socket that listens at the address `host` stands for, and no other. Port 0
// lets the kernel choose (see local_address).
FileDescriptor listen_at(const std::string& host, int port);

// A socket that listens at all addresses of this host, IPv6 and IPv4.
FileDescriptor listen_everywhere(int port);

// The next connection that waits at `listener`; none when none does.
// SystemError when the process is out of file descriptors or memory.
FileDescriptor accept_from(int listener);

// Connects to the first address of `host` that answers, trying each once.
FileDescriptor connect_once(const std::string& host, int port,
                            Deadline deadline,
                            const Cancellation* cancellation = nullptr);

// The same, again and again until `deadline`: the server may come up later. The
// log has a warning once that has taken longer than `warn_after`.
FileDescriptor connect_to(
    const std::string& host, int port, Deadline deadline,
    const Cancellation* cancellation = nullptr,
    std::chrono::nanoseconds warn_after = std::chrono::seconds(10));

// What one non-blocking read or write came to.
struct Transfer {
  std::size_t bytes = 0;
  bool ended = false;  // the connection is closed or broken
};

// Reads what has arrived, at most `room`; 0 bytes when nothing has.
Transfer receive_some(int socket, std::span<std::byte> room);

// Writes what fits the socket's buffer; never raises SIGPIPE.
Transfer send_some(int socket, std::span<const std::byte> data);

}  // namespace lockstep
