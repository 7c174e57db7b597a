#include "src/comm/mpi/plugin/mpi_request.h"

#include <cstring>

namespace lockstep {

LockstepTransportStatus MpiRequest::wait(std::chrono::microseconds timeout) {
  if (status_ == kTransportDone) return kTransportDone;
  if (status_ == kTransportNotYet && timeout.count() <= 0)
    return kTransportNotYet;
  const auto end = std::chrono::steady_clock::now() + timeout;
  MutexLock lock(mutex_);
  while (status_ == kTransportNotYet)
    if (changed_.wait_until(lock, end) == std::cv_status::timeout) break;
  if (status_ == kTransportBroken) throw BrokenConnection(peer, why_);
  if (status_ == kTransportFailed) throw MpiError(why_);
  return status_;
}

void MpiRequest::abandon() {
  const MutexLock lock(mutex_);
  abandoned_ = true;
}

bool MpiRequest::copy_out(std::size_t at, std::span<std::byte> to) {
  const MutexLock lock(mutex_);
  if (!abandoned_) std::memcpy(to.data(), data_ + at, to.size());
  return !abandoned_;
}

bool MpiRequest::copy_in(std::size_t at, std::span<const std::byte> from) {
  const MutexLock lock(mutex_);
  if (!abandoned_ && !from.empty())
    std::memcpy(data_ + at, from.data(), from.size());
  return !abandoned_;
}

void MpiRequest::finish(LockstepTransportStatus status,
                        const std::string& why) {
  const MutexLock lock(mutex_);
  if (status_ != kTransportNotYet) return;
  why_ = why;
  status_ = status;
  changed_.notify_all();
}

}  // namespace lockstep
