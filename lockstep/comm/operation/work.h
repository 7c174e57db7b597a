// A handle on a started operation.
//
// Threads: copies may be used from any thread.
// Errors:  surface in wait(): PeerFailure, Mismatch, Timeout, NetworkError.
#pragma once

#include <atomic>
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

// Writes down what becomes of operations, by the number that it gave each.
// Threads: every method may be called from any thread.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;

  // A caller waits for the operation.
  virtual void awaited(std::uint64_t number) = 0;
  // It is complete; `since` is read_ticks() of when the caller began to wait.
  virtual void completed(std::uint64_t number) = 0;
  virtual void completed_for_waiter(std::uint64_t number,
                                    std::uint64_t since) = 0;
  // Its wait throws `error`.
  virtual void failed(std::uint64_t number,
                      const std::exception_ptr& error) noexcept = 0;
};

// The side of a backend that knows the state of the operations it started. A
// ticket is the backend's number of one of them.
class PendingWork {
 public:
  virtual ~PendingWork() = default;

  // Returns when the operation is complete, or throws its error. An empty
  // deadline means the operation's own. When the deadline passes, the whole
  // group is aborted before Timeout is thrown.
  virtual void wait(std::uint64_t ticket, std::optional<Deadline> deadline) = 0;

  // Whether wait() would return or throw at once.
  virtual bool done(std::uint64_t ticket) = 0;

  // The ranks without which the operation cannot go on.
  virtual std::vector<int> missing(std::uint64_t ticket) = 0;

  // The rank whose message a completed receive holds; -1 for all else.
  virtual int source_rank(std::uint64_t /*ticket*/) { return -1; }

  // As in Work. Without a device, wait() does everything.
  virtual void order_before(std::uint64_t ticket, void* /*stream*/) {
    wait(ticket, std::nullopt);
  }
  virtual void synchronize(std::uint64_t ticket,
                           std::optional<Deadline> deadline) {
    wait(ticket, deadline);
  }
  // Whether an operation is complete when wait() returns; if not, the backend
  // reports its completion to the recorder.
  virtual bool completes_in_wait() const { return true; }

  // Tells `observer` what becomes of the operations; the first call counts.
  void tell(std::shared_ptr<WorkObserver> observer);
  WorkObserver* observer() const { return told_.load(); }

 private:
  std::shared_ptr<WorkObserver> observer_;
  std::atomic<WorkObserver*> told_{nullptr};
};

class Work {
 public:
  // An operation that completed while it was being started.
  Work() = default;

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
  // own (comm/operation/current_stream.h) wait, and returns. This does the same
  // for another stream: work given to it from now on begins after the
  // operation.
  void order_before(void* stream) const {
    if (pending_) pending_->order_before(ticket_, stream);
  }
  // Waits as wait() does, and on a GPU until the operation is done there.
  void synchronize(std::optional<Deadline> deadline = std::nullopt) const {
    if (pending_) synchronize_pending(deadline);
  }

  bool done() const { return !pending_ || done_pending(); }

  // The ranks that the operation waits for; may be empty.
  std::vector<int> missing() const {
    return pending_ ? pending_->missing(ticket_) : std::vector<int>{};
  }

  // The rank whose message a completed receive holds; -1 for all else.
  int source_rank() const {
    if (!pending_) return source_;
    if (source_ >= 0) return done() ? source_ : -1;
    return pending_->source_rank(ticket_);
  }

 private:
  friend class GroupRecorder;

  void wait_pending(std::optional<Deadline> deadline) const;
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
