// Lets the ranks of a shared-memory group wait for each other without occupying
// a core and without losing a wake-up.
//
// A waiter first polls (a running peer answers within a microsecond), then
// registers as a sleeper, checks once more and sleeps on the futex. A thread
// that changes shared state calls ring(), which costs one load while no thread
// sleeps.
//
// No wake-up is lost as long as changes are stored and loaded in sequentially
// consistent order: either the waiter's last check sees the change, or the
// ringer's load sees the sleeper.
//
// Threads: any thread of any process that maps the control block.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "src/comm/shm/control_block.h"

namespace lockstep {

class Doorbell {
 public:
  // kCrowded: some ranks share a core, so polling rarely pays.
  enum class Cores { kEnough, kCrowded };

  Doorbell(ControlBlock& block, Cores cores) : block_(block), cores_(cores) {}

  // Wakes every sleeper. Call after each seq_cst store after which others may
  // go on.
  void ring();
  // The same where only threads of this rank can.
  void ring_for_own() {
    if (own_sleepers_.load() > 0) ring();
  }

  // Pauses between polls; returns false when polling on is pointless because
  // another rank may need this core.
  bool pause_briefly(int turn) const {
    if (cores_ == Cores::kCrowded) return false;
    pause(turn);
    return true;
  }

  // Calls `ready` until it returns true; gives up and returns false after
  // about `timeout`, which must be positive.
  template <class Ready>
  bool wait(Ready&& ready, std::chrono::nanoseconds timeout) {
    for (int i = 0; i < spins(); ++i) {
      if (ready()) return true;
      pause(i);
    }
    const Sleeper own(own_sleepers_);
    const Sleeper sleeper(block_.sleepers);
    const std::uint32_t heard = block_.bell.load();
    if (ready()) return true;
    sleep(heard, timeout);
    return ready();
  }

 private:
  // Counted among `sleepers` while it lives.
  class Sleeper {
   public:
    explicit Sleeper(std::atomic<std::uint32_t>& sleepers)
        : sleepers_(sleepers) {
      sleepers_.fetch_add(1);
    }
    ~Sleeper() { sleepers_.fetch_sub(1); }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;

   private:
    std::atomic<std::uint32_t>& sleepers_;
  };

  int spins() const { return cores_ == Cores::kEnough ? 4000 : 20; }
  void pause(int turn) const;
  void sleep(std::uint32_t heard, std::chrono::nanoseconds timeout);

  ControlBlock& block_;
  Cores cores_;
  std::atomic<std::uint32_t> own_sleepers_{0};  // threads of this rank
};

}  // namespace lockstep
