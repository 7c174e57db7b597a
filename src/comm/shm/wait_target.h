// What a thread of a shared-memory group waits for: a collective, by its
// ticket, or a message. Also makes the text of its Timeout.
//
// Threads: a value. Any thread may call its methods, except that only the
//          thread that advances operations calls those with an ShmContext, and
//          peer() and wants_any().
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/comm/shm/collective_queue.h"
#include "src/comm/shm/message_matcher.h"

namespace lockstep {

class WaitTarget {
 public:
  WaitTarget(CollectiveQueue& collectives, std::uint64_t ticket)
      : collectives_(&collectives), ticket_(ticket) {}
  WaitTarget(CollectiveQueue& collectives, const ShmMessage& message)
      : collectives_(&collectives), message_(&message) {}

  bool complete() const {
    return message_ != nullptr ? message_->done.load()
                               : collectives_->completed() >= ticket_;
  }

  // Of a message: the other rank, or kAnySource until one has been matched.
  std::optional<int> peer() const;
  // Whether any one of the ranks that missing() names is enough.
  bool wants_any() const { return peer() == kAnySource; }

  // The ranks without which it does not complete.
  std::vector<int> missing(const ShmContext& context) const;

  // The operation, as describe() gives it.
  std::string describe_call() const;

  // The text of a Timeout, which names the ranks that hold up all others. The
  // wait that ends began at `waited_since`.
  std::string describe_timeout(const ShmContext& context,
                               Deadline::Clock::time_point waited_since) const;

  Deadline deadline() const;
  // Calls Operation::meanwhile, and returns what it throws.
  std::exception_ptr call_meanwhile() const;
  // When the operation began.
  Deadline::Clock::time_point begun() const;

 private:
  std::vector<int> late(const ShmContext& context,
                        Deadline::Clock::time_point waited_since) const;

  CollectiveQueue* collectives_;
  std::uint64_t ticket_ = 0;
  const ShmMessage* message_ = nullptr;  // null: waits for the collective
};

}  // namespace lockstep
