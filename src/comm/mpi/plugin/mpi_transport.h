// A group's messages over MPI, as a transport of transport.h.
//
// Threads: as transport.h says.
// Errors:  BrokenConnection and MpiError, which TransportEntry turns into
//          statuses.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "src/comm/mpi/plugin/mpi_engine.h"
#include "src/comm/mpi/plugin/mpi_group.h"
#include "src/comm/mpi/plugin/mpi_request.h"
#include "src/comm/wire/transport_entry.h"

namespace lockstep {

class MpiTransport {
 public:
  class Request {
   public:
    Request(MpiTransport& transport, MpiRequestPointer message);
    ~Request();
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    MpiRequest& message() const { return *message_; }

   private:
    MpiTransport& transport_;
    const MpiRequestPointer message_;
  };

  // Starts the engine if needed.
  explicit MpiTransport(const LockstepTransportConfig& config);
  ~MpiTransport();
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  std::unique_ptr<Request> send(const LockstepTransportMessage& message);
  std::unique_ptr<Request> receive(const LockstepTransportMessage& message);
  LockstepTransportStatus wait(Request& request,
                               std::chrono::microseconds timeout);
  void leave();
  void close();

 private:
  void with_group(std::function<void(MpiGroup&)> action);

  MpiEngine& engine_;
  // Only the engine's thread makes and uses it and what it points to.
  const std::shared_ptr<std::shared_ptr<MpiGroup>> group_;
  std::atomic<bool> closed_{false};
};

}  // namespace lockstep
