#include "src/comm/shm/progress_thread.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kSoonest{1};
constexpr std::chrono::milliseconds kLatest{16};
constexpr int kIdleLooks = 4;  // consecutive, before the thread sleeps

}  // namespace

ProgressThread::ProgressThread(std::function<std::uint64_t()> advance)
    : advance_(std::move(advance)), thread_([this] { run(); }) {}

ProgressThread::~ProgressThread() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void ProgressThread::notify() {
  if (!parked_.load() || !parked_.exchange(false)) return;
  MutexLock lock(mutex_);
  wake_.notify_one();
}

void ProgressThread::run() {
  std::chrono::milliseconds interval = kSoonest;
  std::uint64_t last = 0;
  int idle = 0;
  while (true) {
    const std::uint64_t state = advance_();
    idle = state == 0 ? idle + 1 : 0;
    interval = state != 0 && state == last ? kSoonest
                                           : std::min(interval * 2, kLatest);
    last = state;
    if (idle >= kIdleLooks) {
      park();
      idle = 0;
    }
    MutexLock lock(mutex_);
    if (!stopping_) wake_.wait_for(lock, interval);  // or a little less
    if (stopping_) return;
  }
}

// Announces the sleep before the last check, so that a thread that starts an
// operation after that check sees the announcement.
void ProgressThread::park() {
  parked_.store(true);
  if (advance_() != 0) {
    parked_.store(false);
    return;
  }
  MutexLock lock(mutex_);
  while (!stopping_ && parked_.load()) wake_.wait(lock);
}

}  // namespace lockstep
