#include "lockstep/comm/work.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "src/comm/operation/pending_work.h"
#include "src/comm/operation/tick_clock.h"

namespace lockstep {
namespace {

class FailedWork : public PendingWork {
 public:
  explicit FailedWork(std::exception_ptr error) : error_(std::move(error)) {}
  void wait(std::uint64_t, std::optional<Deadline>) override {
    std::rethrow_exception(error_);
  }
  bool done(std::uint64_t) override { return true; }
  std::vector<int> missing(std::uint64_t) override { return {}; }

 private:
  std::exception_ptr error_;
};

class Blocked {
 public:
  explicit Blocked(WorkObserver& observer) : observer_(observer) {
    observer_.blocks();
  }
  ~Blocked() { observer_.goes_on(); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

 private:
  WorkObserver& observer_;
};

}  // namespace

void PendingWork::tell(std::shared_ptr<WorkObserver> observer) {
  if (told_.load() != nullptr) return;
  observer_ = std::move(observer);
  told_.store(observer_.get());
}

void PendingWork::check_process(const char* call) const {
  if (!process_.is_child()) return;
  throw InvalidArgument(
      fmt::format("{}: this process was forked from the rank that started the "
                  "operation, and cannot act for it\n  next:    call it in the "
                  "process that started the operation",
                  call));
}

void Work::wait_pending(std::optional<Deadline> deadline) const {
  pending_->check_process("Work::wait");
  WorkObserver* const observer = pending_->observer();
  if (observer == nullptr) return pending_->wait(ticket_, deadline);
  const std::uint64_t since = read_ticks();
  observer->awaited(number_);
  try {
    const Blocked blocked(*observer);
    pending_->wait(ticket_, deadline);
  } catch (...) {
    observer->failed(number_, std::current_exception());
    throw;
  }
  if (pending_->completes_in_wait())
    observer->completed_for_waiter(number_, since);
}

void Work::synchronize_pending(std::optional<Deadline> deadline) const {
  pending_->check_process("Work::synchronize");
  if (pending_->completes_in_wait()) return wait_pending(deadline);
  WorkObserver* const observer = pending_->observer();
  if (observer != nullptr) observer->awaited(number_);
  try {
    pending_->synchronize(ticket_, deadline);
  } catch (...) {
    if (observer != nullptr)
      observer->failed(number_, std::current_exception());
    throw;
  }
}

void Work::order_before_pending(void* stream) const {
  pending_->check_process("Work::order_before");
  pending_->order_before(ticket_, stream);
}

std::vector<int> Work::missing() const {
  if (!pending_) return {};
  pending_->check_process("Work::missing");
  return pending_->missing(ticket_);
}

int Work::source_rank() const {
  if (!pending_) return source_;
  pending_->check_process("Work::source_rank");
  if (source_ >= 0) return done() ? source_ : -1;
  return pending_->source_rank(ticket_);
}

// An operation that has failed is recorded when wait() throws its error.
bool Work::done_pending() const {
  pending_->check_process("Work::done");
  if (!pending_->done(ticket_)) return false;
  WorkObserver* const observer = pending_->observer();
  // If wait() does not complete it, the backend reports completion; and streams
  // wait only on request.
  if (observer == nullptr || !pending_->completes_in_wait()) return true;
  try {
    pending_->wait(ticket_, std::nullopt);
    observer->completed(number_);
  } catch (...) {
    return true;
  }
  return true;
}

Work Work::failed(std::exception_ptr error) {
  return Work(std::make_shared<FailedWork>(std::move(error)), 0);
}

void wait_for_all(std::span<const Work> works) {
  std::exception_ptr first;
  for (const Work& work : works) {
    try {
      work.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace lockstep
