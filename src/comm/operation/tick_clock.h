// The machine's cheapest clock, and the conversion of its ticks to time.
//
// Reading the x86 time-stamp counter costs a third of steady_clock::now().
// Elsewhere a tick is steady_clock's nanosecond.
#pragma once

#include <chrono>
#include <cstdint>

namespace lockstep {

inline std::uint64_t read_ticks() {
#if defined(__x86_64__) || defined(__i386__)
  return __builtin_ia32_rdtsc();
#else
  return static_cast<std::uint64_t>(
      std::chrono::steady_clock::now().time_since_epoch().count());
#endif
}

// Both clocks, read at one moment.
struct TickMoment {
  using Time = std::chrono::steady_clock::time_point;

  std::uint64_t ticks = read_ticks();
  Time time = std::chrono::steady_clock::now();
};

// Converts ticks to time, from two moments that give the length of a tick. The
// further apart they are, the more precise it is.
class TickClock {
 public:
  TickClock(TickMoment earlier, TickMoment later)
      : later_(later), length_(length_of_tick(earlier, later)) {}

  TickMoment::Time time_of(std::uint64_t ticks) const {
    // Cores' counters may differ a little, so `ticks` may be in the future.
    const auto ago = static_cast<std::int64_t>(later_.ticks - ticks);
    const std::chrono::duration<double, std::nano> nanoseconds(
        static_cast<double>(ago) * length_);
    return later_.time -
           std::chrono::duration_cast<TickMoment::Time::duration>(nanoseconds);
  }

 private:
  static double length_of_tick(TickMoment earlier, TickMoment later) {
    const auto ticks = later.ticks - earlier.ticks;
    const std::chrono::duration<double, std::nano> passed =
        later.time - earlier.time;
    return ticks == 0 ? 0 : passed.count() / static_cast<double>(ticks);
  }

  TickMoment later_;
  double length_;  // in nanoseconds
};

}  // namespace lockstep
