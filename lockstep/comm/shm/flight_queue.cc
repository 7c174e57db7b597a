#include "lockstep/comm/shm/flight_queue.h"

#include <utility>

namespace lockstep {

void FlightQueue::reap() {
  for (; reaped_ < completed_.load(); ++reaped_) {
    spare_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
}

FlightQueue::Started FlightQueue::start(const Operation& operation,
                                        const GroupIdentity& identity) {
  MutexLock lock(mutex_);
  reap();
  std::unique_ptr<Flight> flight;
  if (spare_.empty()) {
    flight = std::make_unique<Flight>();
  } else {
    flight = std::move(spare_.back());
    spare_.pop_back();
  }
  flight->begin(operation, identity);
  queue_.push_back(std::move(flight));
  return {reaped_ + queue_.size(),
          queue_.size() == 1 ? queue_.front().get() : nullptr};
}

Flight* FlightQueue::oldest() {
  if (current_ != nullptr) return current_;
  MutexLock lock(mutex_);
  reap();
  if (!queue_.empty()) current_ = queue_.front().get();
  return current_;
}

bool FlightQueue::empty() {
  MutexLock lock(mutex_);
  reap();
  return queue_.empty();
}

bool FlightQueue::visit(std::uint64_t ticket,
                        const std::function<void(Flight&)>& look) {
  MutexLock lock(mutex_);
  if (ticket <= completed_.load() || ticket - reaped_ > queue_.size())
    return false;
  look(*queue_[ticket - reaped_ - 1]);
  return true;
}

}  // namespace lockstep
