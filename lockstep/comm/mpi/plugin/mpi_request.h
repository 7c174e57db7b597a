// A message on its way, between the thread that asked for it and the one that
// carries it out.
//
// MPI never gets the caller's memory: it moves copies that belong to the
// plug-in, because an operation of MPI's cannot be called back once it has
// begun. So abandon() is all it takes to be rid of a message.
//
// Threads: wait(), abandon() by whoever asked; the rest by the progress thread.
// Errors:  BrokenConnection and MpiError, from wait().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/mutex.h"
#include "lockstep/comm/mpi/plugin/mpi_link.h"
#include "lockstep/comm/wire/transport_entry.h"

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
  // Of a short send: a packet without its header, filled by whoever asked.
  MpiBlock packet{};
  bool was_waited_for = false;  // belongs to whoever waits

  // Waits up to `patience` for the end: kTransportDone, Closed, or NotYet when
  // it has not come.
  LockstepTransportStatus wait(std::chrono::microseconds patience);
  bool has_ended() const { return status_ != kTransportNotYet; }

  // The caller's memory is not touched any more.
  void abandon();

  // Whether it will never be waited for again.
  bool abandoned() const { return abandoned_; }
  // From and to the caller's memory. False, and nothing copied, once abandoned.
  bool copy_out(std::size_t at, std::span<std::byte> to);
  bool copy_in(std::size_t at, std::span<const std::byte> from);

  // The first end counts.
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
