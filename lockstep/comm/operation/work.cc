#include "lockstep/comm/operation/work.h"

#include "lockstep/comm/diagnosis/recorder.h"

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

}  // namespace

void PendingWork::record_with(std::shared_ptr<GroupRecorder> recorder) {
  if (told_.load() != nullptr) return;
  recorder_ = std::move(recorder);
  told_.store(recorder_.get());
}

void Work::wait_pending(std::optional<Deadline> deadline) const {
  GroupRecorder* const recorder = pending_->recorder();
  if (recorder == nullptr) return pending_->wait(ticket_, deadline);
  const std::uint64_t since = read_ticks();
  recorder->awaited(number_);
  try {
    pending_->wait(ticket_, deadline);
  } catch (...) {
    recorder->failed(number_, std::current_exception());
    throw;
  }
  if (pending_->completes_in_wait())
    recorder->completed_for_waiter(number_, since);
}

void Work::synchronize_pending(std::optional<Deadline> deadline) const {
  if (pending_->completes_in_wait()) return wait_pending(deadline);
  GroupRecorder* const recorder = pending_->recorder();
  if (recorder != nullptr) recorder->awaited(number_);
  try {
    pending_->synchronize(ticket_, deadline);
  } catch (...) {
    if (recorder != nullptr)
      recorder->failed(number_, std::current_exception());
    throw;
  }
}

// An operation that has failed is recorded when wait() throws its error.
bool Work::done_pending() const {
  if (!pending_->done(ticket_)) return false;
  GroupRecorder* const recorder = pending_->recorder();
  // If wait() does not complete it, the backend reports completion; and streams
  // wait only on request.
  if (recorder == nullptr || !pending_->completes_in_wait()) return true;
  try {
    pending_->wait(ticket_, std::nullopt);
    recorder->completed(number_);
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
