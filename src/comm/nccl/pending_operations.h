// The operations of a group that are in flight, in the order in which they were
// started.
//
// Threads: one thread at a time.
// Errors:  see each method.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <vector>

#include "lockstep/comm/work.h"
#include "src/comm/nccl/nccl_errors.h"
#include "src/comm/nccl/nccl_operation.h"

namespace lockstep {

class PendingOperations {
 public:
  using Pointer = std::shared_ptr<NcclOperation>;

  explicit PendingOperations(const GpuPlace& place) : place_(place) {}

  // Counts from 1. An operation that fails to start uses its ticket up.
  std::uint64_t next_ticket() { return ++started_; }
  void add(const Pointer& pending) {
    pending_.emplace(pending->ticket, pending);
  }

  bool empty() const { return pending_.empty(); }
  // Null if the operation is done or never existed.
  Pointer find(std::uint64_t ticket) const;
  // The oldest operation; null if the list is empty.
  const Operation* first() const;
  bool all_launched() const;
  // The ranks that the operation with this ticket waits for, as far as is
  // known.
  std::vector<int> missing(std::uint64_t ticket) const;

  // Removes completed operations, tells `observer` (may be null), and returns
  // whether there were any. Throws Mismatch when the ranks' calls do not match,
  // and the device's errors.
  bool complete(WorkObserver* observer);
  // Throws Timeout when an operation's deadline has passed.
  void check_deadlines() const;

  // After an error: tells `observer` (may be null) that every operation failed.
  // The device stops them, except what a graph has after its collectives.
  void failed(WorkObserver* observer, const std::exception_ptr& error) const;
  // Call after the CPU group has been aborted. Returns when that group touches
  // the operations no more.
  void settle() const noexcept;

 private:
  bool is_done(NcclOperation& pending, const WorkObserver* observer) const;

  const GpuPlace place_;
  std::map<std::uint64_t, Pointer> pending_;
  std::uint64_t started_ = 0;
};

}  // namespace lockstep
