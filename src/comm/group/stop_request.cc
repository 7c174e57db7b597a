#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <ctime>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"
#include "src/base/exit_codes.h"
#include "src/base/mutex.h"

namespace lockstep {
namespace {

static_assert(StopRequest::kStartAgain == kExitStartAgain);

constexpr std::int64_t kSecond = 1'000'000'000;  // ns
// Schedulers signal every process of a job, and a launcher passes its own
// signal on: a rank receives it twice within moments.
constexpr std::int64_t kSameWish = 2 * kSecond;

// When the signal came, on the monotonic clock; 0: it has not.
std::atomic<std::int64_t> asked_at{0};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
std::atomic<pid_t> owner{0};

// The signal's handler.
void take(int signal) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  const std::int64_t at = now.tv_sec * kSecond + now.tv_nsec;
  std::int64_t first = 0;
  // A forked child takes no part in the agreement.
  if (::getpid() == owner.load() &&
      (asked_at.compare_exchange_strong(first, at) || at - first < kSameWish))
    return;
  struct sigaction usual {};
  usual.sa_handler = SIG_DFL;
  ::sigaction(signal, &usual, nullptr);
  ::raise(signal);  // takes effect when this handler returns
}

// What all StopRequests of the process share.
struct Shared {
  Mutex mutex;
  int users LOCKSTEP_GUARDED_BY(mutex) = 0;
  int signal LOCKSTEP_GUARDED_BY(mutex) = 0;  // that take() handles, or 0
  bool stopping LOCKSTEP_GUARDED_BY(mutex) = false;
  struct sigaction earlier LOCKSTEP_GUARDED_BY(mutex) {};

  void restore() LOCKSTEP_REQUIRES(mutex) {
    struct sigaction now {};
    // The program may have set another handler meanwhile.
    if (signal != 0 && ::sigaction(signal, nullptr, &now) == 0 &&
        now.sa_handler == take)
      ::sigaction(signal, &earlier, nullptr);
    signal = 0;
  }
};

Shared& shared() {
  static auto* const only = new Shared;  // static objects may still use it
  return *only;
}

}  // namespace

StopRequest::StopRequest(std::shared_ptr<ProcessGroup> group, int signal)
    : group_(std::move(group)) {
  if (!group_) throw InvalidArgument("StopRequest needs a group");
  Shared& all = shared();
  const MutexLock lock(all.mutex);
  if (all.users > 0 && signal != all.signal)
    throw InvalidArgument(
        fmt::format("this process has a StopRequest for signal {} already, so "
                    "none for {} can be added: use one signal",
                    all.signal, signal));
  if (all.users == 0) {
    all.restore();
    all.stopping = false;
    asked_at = 0;
    owner = ::getpid();
    struct sigaction action {};
    action.sa_handler = take;
    action.sa_flags = SA_RESTART;
    if (::sigaction(signal, &action, &all.earlier) != 0)
      throw InvalidArgument(fmt::format(
          "StopRequest: signal {} cannot be handled; use SIGTERM or SIGUSR2",
          signal));
    all.signal = signal;
  }
  ++all.users;
}

StopRequest::~StopRequest() {
  Shared& all = shared();
  const MutexLock lock(all.mutex);
  if (--all.users == 0 && !all.stopping) all.restore();
}

bool StopRequest::agreed() {
  std::array<std::int32_t, 1> wish{asked_at.load() != 0 ? 1 : 0};
  if (group_->size() > 1)
    group_
        ->all_reduce(view(std::span<std::int32_t>(wish)), ReduceOp::kMax,
                     {.label = "whether a rank was asked to stop"})
        .wait();
  if (wish[0] == 0) return false;
  const MutexLock lock(shared().mutex);
  shared().stopping = true;
  return true;
}

}  // namespace lockstep
