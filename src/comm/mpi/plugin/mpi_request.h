// A pending message, shared by the thread that posted it and the thread that
// carries it out.
//
// MPI never gets the caller's memory: it moves copies that belong to the
// plug-in, because an MPI operation cannot be cancelled once it has begun. So
// abandon() alone releases a message.
//
// Threads: the thread that posted it calls wait() and abandon(); the progress
//          thread calls the rest.
// Errors:  BrokenConnection and MpiError, from wait().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "src/base/mutex.h"
#include "src/comm/mpi/plugin/mpi_link.h"
#include "src/comm/wire/transport_entry.h"

namespace lockstep {

class MpiRequest {
 public:
  explicit MpiRequest(const LockstepTransportMessage& message)
      : peer(message.peer),
        channel(message.channel),
        tag(message.tag),
        bytes(message.bytes),
        data_(static_cast<std::byte*>(message.data)) {}

  const int peer;  // of the group
  const int channel;
  const int tag;
  const std::size_t bytes;
  // Of a short send: a packet without its header, filled by the posting thread.
  MpiBlock packet{};
  bool was_waited_for = false;  // belongs to the waiting thread

  // Waits up to `timeout` for the request to end: kTransportDone, Closed, or
  // NotYet if it has not ended.
  LockstepTransportStatus wait(std::chrono::microseconds timeout);
  bool has_ended() const { return status_ != kTransportNotYet; }

  // Afterwards no thread touches the caller's memory.
  void abandon();

  // Whether abandon() was called.
  bool abandoned() const { return abandoned_; }
  // Copies from and to the caller's memory. Once abandoned, copies nothing and
  // returns false.
  bool copy_out(std::size_t at, std::span<std::byte> to);
  bool copy_in(std::size_t at, std::span<const std::byte> from);

  // Ends the request; only the first call has an effect.
  void finish(LockstepTransportStatus status, const std::string& why = "");

 private:
  std::byte* const data_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<bool> abandoned_{false};
  std::atomic<LockstepTransportStatus> status_{kTransportNotYet};
  std::string why_ LOCKSTEP_GUARDED_BY(mutex_);
};

using MpiRequestPointer = std::shared_ptr<MpiRequest>;

}  // namespace lockstep
