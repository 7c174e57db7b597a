// A group's messages over MPI, as transport.h wants them.
//
// Threads: as transport.h says.
// Errors:  MpiError; mpi_entry.cc makes statuses of them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/mpi/plugin/mpi_engine.h"
#include "lockstep/comm/mpi/plugin/mpi_group.h"
#include "lockstep/comm/mpi/plugin/mpi_request.h"
#include "lockstep/comm/wire/transport.h"

namespace lockstep {

class MpiTransport {
 public:
  // The engine has been started.
  explicit MpiTransport(const LockstepTransportConfig& config);
  ~MpiTransport();
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  MpiRequestPointer send(const LockstepTransportMessage& message);
  MpiRequestPointer receive(const LockstepTransportMessage& message);
  LockstepTransportStatus wait(MpiRequest& request,
                               std::chrono::microseconds patience,
                               LockstepTransportOutcome* outcome);
  void release(const MpiRequestPointer& request);
  void close();

 private:
  void with_group(std::function<void(MpiGroup&)> action);

  MpiEngine& engine_;
  // Made and used by the engine's thread only, as is what it points to.
  const std::shared_ptr<std::shared_ptr<MpiGroup>> group_;
  std::atomic<bool> closed_{false};
};

}  // namespace lockstep
