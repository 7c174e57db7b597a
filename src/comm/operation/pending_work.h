// The side of a Work that a backend implements, and the observer to which it
// tells what becomes of operations.
//
// Threads: every method may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/work.h"
#include "src/base/own_process.h"

namespace lockstep {

// Writes down what becomes of operations, by the number that it gave each.
// Threads: every method may be called from any thread.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;

  // A caller waits for the operation.
  virtual void awaited(std::uint64_t number) = 0;
  // A thread is about to block until an operation is complete, and then goes
  // on: for `lockstep status`.
  virtual void blocks() noexcept {}
  virtual void goes_on() noexcept {}
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

  // Throws InvalidArgument, which names `call`, in a forked child: it shares
  // the memory and the connections of its parent, the rank, and would act for
  // it.
  void check_process(const char* call) const;
  bool is_of_parent() const { return process_.is_child(); }

  // Tells `observer` what becomes of the operations; the first call counts.
  void tell(std::shared_ptr<WorkObserver> observer);
  WorkObserver* observer() const { return told_.load(); }

 private:
  const ForkCheck process_{};
  std::shared_ptr<WorkObserver> observer_;
  std::atomic<WorkObserver*> told_{nullptr};
};

}  // namespace lockstep
