// One connection to a store's server, as the client sees it.
//
// Threads: one object, one thread at a time.
// Errors:  NetworkError when the server is gone, turns the client away or is no
//          store; Timeout and Cancelled from what waits.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/net/file_descriptor.h"
#include "lockstep/net/frame.h"
#include "lockstep/store/store_call.h"
#include "lockstep/store/store_protocol.h"

namespace lockstep {

// The server closed the connection before it gave its verdict, as it does to
// make room for others: another attempt may succeed.
class ConnectionDropped : public NetworkError {
 public:
  using NetworkError::NetworkError;
};

class TcpConnection {
 public:
  // Introduces the client on a socket that is connected: the server shows that
  // it has `token`, then the client does. Waits for the server's verdict.
  // ConnectionDropped when there is none.
  TcpConnection(FileDescriptor socket, const std::string& token,
                const StoreCall& call, Deadline deadline,
                const Cancellation* cancellation);

  // Which server answers: its name, which no other has.
  const std::string& server() const { return server_; }

  // Sends `request` and returns its answer. After a Timeout or a Cancelled the
  // connection can still be used: the answer, should it come, is dropped. But
  // a server that was asked to wait goes on waiting, and takes no other request
  // until then.
  Answer call(const StoreCall& call, Request& request, Deadline deadline,
              const Cancellation* cancellation);

 private:
  // What a call waits under.
  struct Wait {
    const StoreCall& call;
    Deadline deadline;
    const Cancellation* cancellation;
  };

  // Sends what is left to send and waits until more has arrived.
  void exchange(const Wait& wait);
  std::span<const std::byte> next_frame(const Wait& wait);
  void check_preamble(const Wait& wait);
  // Answers the server once it has proved that it has `token`.
  void prove_to_server(const std::string& token, const Challenge& challenge,
                       const Wait& wait);

  FileDescriptor socket_;
  std::string server_;  // empty until the verdict
  FrameReader reader_;
  Bytes outgoing_;
  std::size_t sent_ = 0;
  std::uint32_t last_id_ = 0;
};

}  // namespace lockstep
