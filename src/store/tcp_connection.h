// One connection to a store's server, as the client sees it.
//
// Threads: one thread at a time per object.
// Errors:  NetworkError when the server is gone, refuses the client or is not a
//          store; Timeout and Cancelled from calls that wait.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "src/net/file_descriptor.h"
#include "src/net/frame.h"
#include "src/store/store_call.h"
#include "src/store/store_protocol.h"

namespace lockstep {

// The server closed the connection before its verdict, which it does to make
// room for other clients. Another attempt may succeed.
class ConnectionDropped : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

// What a client and its server must have in common.
struct ClientIdentity {
  std::string token = {};
  std::string job = {};  // TcpStoreServerOptions::job
};

class TcpConnection {
 public:
  // Introduces the client on a connected socket: the server proves that it has
  // the identity's token and job, then the client does. Waits for the server's
  // verdict; ConnectionDropped when the connection closes first.
  TcpConnection(FileDescriptor socket, const ClientIdentity& identity,
                const StoreCall& call, Deadline deadline,
                const Cancellation* cancellation);

  // The server's unique name.
  const std::string& server() const { return server_; }

  // Sends `request` and returns its answer. After a Timeout or a Cancelled the
  // connection remains usable: it drops a late answer. But a server that
  // received a wait keeps waiting, and takes no other request until the wait
  // ends.
  Answer call(const StoreCall& call, Request& request, Deadline deadline,
              const Cancellation* cancellation);

 private:
  // The limits of a call's wait.
  struct Wait {
    const StoreCall& call;
    Deadline deadline;
    const Cancellation* cancellation;
  };

  // Sends the unsent bytes and waits until more bytes arrive.
  void exchange(const Wait& wait);
  std::span<const std::byte> next_frame(const Wait& wait);
  void check_preamble(const Wait& wait);
  // Answers the server once it has proved itself.
  void prove_to_server(const ClientIdentity& identity,
                       const Challenge& challenge, const Wait& wait);

  FileDescriptor socket_;
  std::string server_;  // empty until the verdict
  FrameReader reader_;
  Bytes outgoing_;
  std::size_t sent_ = 0;
  std::uint32_t last_id_ = 0;
};

}  // namespace lockstep
