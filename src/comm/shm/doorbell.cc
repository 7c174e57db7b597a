#include "src/comm/shm/doorbell.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace lockstep {

void Doorbell::ring() {
  if (block_.sleepers.load() == 0) return;
  block_.bell.fetch_add(1);
  // Not FUTEX_PRIVATE: the sleepers are other processes.
  ::syscall(SYS_futex, &block_.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Doorbell::pause(int turn) const {
  if (cores_ == Cores::kCrowded && turn % 4 == 3) {
    ::sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void Doorbell::sleep(std::uint32_t heard, std::chrono::nanoseconds timeout) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec relative{static_cast<time_t>(seconds.count()),
                          static_cast<long>((timeout - seconds).count())};
  ::syscall(SYS_futex, &block_.bell, FUTEX_WAIT, heard, &relative, nullptr, 0);
}

}  // namespace lockstep
