// The one thread that calls MPI, for all groups of the process.
//
// Other threads submit actions to it. After an event it spins for a moment,
// then yields its core to any thread that needs it, then sleeps in proportion
// to the time since the last event: a wait takes at most an eighth longer, and
// an idle process wakes fifty times per second, or never if it has no group.
//
// MPI can be initialised and finalised once per process, so there is one
// engine. It is never destroyed: a process may exit while MPI does not answer.
//
// Threads: any thread; actions run on the engine's thread.
// Errors:  MpiError from start().
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <string>
#include <vector>

#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/comm/mpi/plugin/mpi_router.h"

namespace lockstep {

class MpiEngine {
 public:
  static MpiEngine& of_process();

  // The engine once all processes have initialised MPI; MpiError if some do not
  // in time.
  static MpiEngine& started();

  // Initialises MPI if needed; waits up to `timeout` for the other processes
  // to do so too, and returns whether they have.
  bool start(std::chrono::microseconds timeout);

  // Valid once start() has returned true.
  int world_rank() const { return world_rank_; }
  int world_size() const { return world_size_; }

  // Runs actions in the order of the calls.
  void submit(std::function<void(MpiRouter&)> action);

  // Counts groups; the last group to end while the process exits ends MPI.
  void count_in() { ++groups_; }
  void count_out();

  // A thread begins to wait for a new event, which may come at once.
  void expect_soon();
  // A thread still waits or polls.
  void attend();
  // Lives while a thread waits.
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
  // The engine stops then, even if other processes do not.
  Clock::time_point stop_by_ LOCKSTEP_GUARDED_BY(mutex_){};
  std::string why_failed_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::function<void(MpiRouter&)>> actions_
      LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep
