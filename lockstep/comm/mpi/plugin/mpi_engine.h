// The one thread that calls MPI, for all groups of the process.
//
// Others hand it actions. It spins for a moment after anything happened, then
// gives its core away whenever somebody wants it, then sleeps, for a time in
// proportion to how long nothing has happened: a wait takes an eighth longer at
// most, and a process that is idle is woken fifty times a second; one
// that has no group, never.
//
// MPI knows one beginning and one end a process, so there is one engine. It is
// never destroyed: a process may exit while MPI does not answer.
//
// Threads: any, but for the actions, which run on the engine's.
// Errors:  MpiError from start().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/mutex.h"
#include "lockstep/base/own_process.h"
#include "lockstep/comm/mpi/plugin/mpi_router.h"

namespace lockstep {

class MpiEngine {
 public:
  static MpiEngine& of_process();

  // The same once all processes have initialised MPI; MpiError when some do not
  // come in time.
  static MpiEngine& started();

  // Initialises MPI unless that was done; waits up to `patience` for the other
  // processes to do so too, and returns whether they have.
  bool start(std::chrono::microseconds patience);

  // Once start() has returned true.
  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }

  // Actions are carried out in this order.
  void submit(std::function<void(MpiRouter&)> action);

  // Counts groups; the last one to go while the process exits ends MPI.
  void count_in() { ++groups_; }
  void count_out();

  // Somebody begins to wait for something new, which may come at once.
  void expect_soon();
  // Somebody still waits, or looks now and then.
  void attend();
  // Kept by who waits.
  class Waiting {
   public:
    explicit Waiting(MpiEngine& engine) : engine_(engine) {
      ++engine_.waiters_;
    }
    ~Waiting() { --engine_.waiters_; }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    MpiEngine& engine_;
  };

 private:
  enum class Sleep { kNone, kShort, kLong };
  enum class State { kNew, kStarting, kRunning, kStopped, kFailed };
  using Clock = std::chrono::steady_clock;

  void run();
  bool begin();
  void serve();
  bool carry_out_actions();
  template <class Action>
  void guarded(const Action& action);
  bool may_stop();
  void rest();
  void sleep(Clock::duration idle);
  void wake();
  void stop();
  void set(State state);
  static void at_exit(int code, void*);

  MpiRouter router_;  // the engine's thread
  Clock::time_point last_event_{};

  std::atomic<int> groups_{0};
  std::atomic<int> waiters_{0};
  std::atomic<Sleep> sleep_{Sleep::kNone};
  std::atomic<bool> expected_{false};  // something new, since the last rest
  std::atomic<bool> attended_{false};  // since the last sleep
  std::atomic<bool> exiting_{false};
  std::atomic<int> exit_code_{0};
  int world_rank_ = 0;
  int world_size_ = 1;

  const OwnProcess process_{};
  Mutex mutex_;
  std::condition_variable_any wakes_;    // the engine
  std::condition_variable_any changed_;  // state_
  State state_ LOCKSTEP_GUARDED_BY(mutex_) = State::kNew;
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Whatever others do.
  Clock::time_point stop_by_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::string why_failed_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::function<void(MpiRouter&)>> actions_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
