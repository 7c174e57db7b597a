// A handle on a started operation. Only wait() tells the caller that the
// operation, a barrier too, is done, and throws its errors; so the compiler
// warns where a call drops its Work.
//
// Threads: copies may be used from any thread.
// Errors:  surface in wait(): PeerFailure, Mismatch, Timeout, NetworkError.
//          In a forked child every call throws InvalidArgument, unless the
//          operation was complete when its start returned: the child is not
//          the rank, and must not act for it.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

class GroupRecorder;
class PendingWork;

// As the peer of a receive: any rank of the group.
inline constexpr int kAnySource = -1;

class [[nodiscard]] Work {
 public:
  // An operation that completed while it was being started.
  Work() = default;

  // Operation `ticket` of `pending`: how backends make a Work.
  Work(std::shared_ptr<PendingWork> pending, std::uint64_t ticket)
      : pending_(std::move(pending)), ticket_(ticket) {}

  // The same for a receive from a known rank.
  Work(std::shared_ptr<PendingWork> pending, std::uint64_t ticket, int source)
      : pending_(std::move(pending)), ticket_(ticket), source_(source) {}

  // A receive that completed while it was being started.
  static Work received_from(int source) {
    Work work;
    work.source_ = source;
    return work;
  }

  // An operation that failed while it was being started; wait() throws `error`.
  static Work failed(std::exception_ptr error);

  // Waits for completion, until the operation's own deadline or `deadline`,
  // whichever is first. The operation's buffers must stay alive until this
  // returns or throws.
  void wait(std::optional<Deadline> deadline = std::nullopt) const {
    if (pending_) wait_pending(deadline);
  }

  // For buffers on a GPU, wait() makes the operation's stream and the thread's
  // own (LibTorch's current stream) wait, and returns. This does the same for
  // another stream: work given to it from now on begins after the operation.
  void order_before(void* stream) const {
    if (pending_) order_before_pending(stream);
  }
  // Waits as wait() does, and on a GPU until the operation is done there.
  void synchronize(std::optional<Deadline> deadline = std::nullopt) const {
    if (pending_) synchronize_pending(deadline);
  }

  bool done() const { return !pending_ || done_pending(); }

  // The ranks that the operation waits for; may be empty.
  std::vector<int> missing() const;

  // The rank whose message a completed receive holds; -1 for all else.
  int source_rank() const;

 private:
  friend class GroupRecorder;

  void wait_pending(std::optional<Deadline> deadline) const;
  void order_before_pending(void* stream) const;
  void synchronize_pending(std::optional<Deadline> deadline) const;
  bool done_pending() const;

  std::shared_ptr<PendingWork> pending_;
  std::uint64_t ticket_ = 0;
  std::uint64_t number_ = 0;  // its recorder's, if it has one
  int source_ = -1;
};

// Waits for all of them even if one fails, since their memory must not be
// touched before; throws the first error, which is the root cause.
void wait_for_all(std::span<const Work> works);

}  // namespace lockstep
