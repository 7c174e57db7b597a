#include "src/comm/shm/collective_queue.h"

#include <utility>

namespace lockstep {

void CollectiveQueue::reap() {
  for (; reaped_ < completed_.load(); ++reaped_) {
    spare_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

CollectiveQueue::Started CollectiveQueue::start(const Operation& operation,
                                                const GroupIdentity& identity) {
  MutexLock lock(mutex_);
  reap();
  std::unique_ptr<PendingCollective> collective;
  if (spare_.empty()) {
    collective = std::make_unique<PendingCollective>();
  } else {
    collective = std::move(spare_.back());
    spare_.pop_back();
  }
  collective->begin(operation, identity);
  // So that reap() cannot fail.
  spare_.reserve(spare_.size() + queue_.size() + 1);
  queue_.push_back(std::move(collective));
  return {reaped_ + queue_.size(),
          queue_.size() == 1 ? queue_.front().get() : nullptr};
}

PendingCollective* CollectiveQueue::oldest() {
  if (current_ != nullptr) return current_;
  MutexLock lock(mutex_);
  reap();
  if (!queue_.empty()) current_ = queue_.front().get();
  return current_;
}

bool CollectiveQueue::empty() {
  MutexLock lock(mutex_);
  reap();
  return queue_.empty();
}

bool CollectiveQueue::visit(
    std::uint64_t ticket, const std::function<void(PendingCollective&)>& look) {
  MutexLock lock(mutex_);
  if (ticket <= completed_.load() || ticket - reaped_ > queue_.size())
    return false;
  look(*queue_[ticket - reaped_ - 1]);
  return true;
}

}  // namespace lockstep
