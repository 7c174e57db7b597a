// The operations of a group that are in flight, in the order in which they were
// started.
//
// Threads: one at a time.
// Errors:  as each method says.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/nccl/nccl_errors.h"
#include "lockstep/comm/nccl/nccl_flight.h"
#include "lockstep/comm/recorder.h"

namespace lockstep {

class PendingFlights {
 public:
  using Pointer = std::shared_ptr<NcclFlight>;

  explicit PendingFlights(const GpuPlace& place) : place_(place) {}

  // From 1 on; for an operation that may not come to fly, and then has used it
  // up.
  std::uint64_t next_ticket() { return ++started_; }
  void add(const Pointer& flight) { flights_.emplace(flight->ticket, flight); }

  bool empty() const { return flights_.empty(); }
  // Null where it is done, or there was none.
  Pointer find(std::uint64_t ticket) const;
  // Null where there is none.
  const Operation* first() const;
  bool all_launched() const;
  // The ranks that the one of this ticket waits for, as far as is known.
  std::vector<int> missing(std::uint64_t ticket) const;

  // Forgets those that are done, and tells `recorder`, if there is one; whether
  // there were some. Throws Mismatch where ranks have called what does not fit,
  // and what the device does.
  bool complete(GroupRecorder* recorder);
  // Timeout where one's deadline has passed.
  void check_deadlines() const;

  // After an error: those that the device carries out are cut off, but for what
  // a graph has behind its collectives.
  void failed(GroupRecorder* recorder, const std::exception_ptr& error) const;
  // Once the group of the CPU has been aborted: returns when nothing of it
  // touches them any more.
  void settle() const noexcept;

 private:
  bool is_done(NcclFlight& flight, const GroupRecorder* recorder) const;

  const GpuPlace place_;
  std::map<std::uint64_t, Pointer> flights_;
  std::uint64_t started_ = 0;
};

}  // namespace lockstep
