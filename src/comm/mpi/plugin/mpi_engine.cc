#include "src/comm/mpi/plugin/mpi_engine.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "src/base/signals_blocked.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using std::chrono::microseconds;

constexpr auto kSpin = 30us;
constexpr auto kYield = 1ms;
constexpr auto kLongestPauseOfWaiters = 2ms;
constexpr auto kLongestPause = 20ms;
// How long the other processes may take to initialise MPI, once all ranks of a
// group have met in the store.
constexpr auto kInitPatience = 1min;
// How long a failed process waits for the others to end too.
constexpr auto kFarewell = 1s;

}  // namespace

MpiEngine& MpiEngine::of_process() {
  static auto* engine = new MpiEngine;
  return *engine;
}

MpiEngine& MpiEngine::started() {
  MpiEngine& engine = of_process();
  if (!engine.start(kInitPatience))
    throw MpiError(
        "MPI_Init_thread waits for processes of this mpirun that do not come\n"
        "  next:    let all of them make their first group on \"mpi\" "
        "together");
  return engine;
}

bool MpiEngine::start(microseconds timeout) {
  MpiLink::check_launcher();
  const auto end = Clock::now() + timeout;
  MutexLock lock(mutex_);
  if (state_ == State::kNew) {
    state_ = State::kStarting;
    const SignalsBlocked blocked;
    std::thread([this] { run(); }).detach();
  }
  while (state_ == State::kStarting)
    if (changed_.wait_until(lock, end) == std::cv_status::timeout) break;
  if (state_ == State::kFailed) throw MpiError(why_failed_);
  if (state_ == State::kStopped) throw MpiError("the process is exiting");
  return state_ == State::kRunning;
}

void MpiEngine::set(State state) {
  const MutexLock lock(mutex_);
  state_ = state;
  changed_.notify_all();
}

void MpiEngine::run() {
  if (!begin()) return;
  serve();
  router_.finish();
  set(State::kStopped);
}

bool MpiEngine::begin() try {
  router_.start();
  world_rank_ = router_.link().rank();
  world_size_ = router_.link().size();
  // Registered after MPI's own handlers, so that it runs before them.
  ::on_exit(&MpiEngine::at_exit, nullptr);
  set(State::kRunning);
  return true;
} catch (const std::exception& error) {
  const MutexLock lock(mutex_);
  why_failed_ = error.what();
  state_ = State::kFailed;
  changed_.notify_all();
  return false;
}

// An MPI error ends all groups, but not the thread, which must report the error
// to threads that submit actions.
template <class Action>
void MpiEngine::guarded(const Action& action) {
  try {
    action();
  } catch (const std::exception& error) {
    router_.fail(error.what());
  }
}

void MpiEngine::serve() {
  while (true) {
    bool moved = carry_out_actions();
    if (!router_.has_failed()) guarded([&] { moved |= router_.advance(); });
    if (moved) {
      last_event_ = Clock::now();
      continue;
    }
    if (may_stop()) return;
    rest();
  }
}

bool MpiEngine::carry_out_actions() {
  std::vector<std::function<void(MpiRouter&)>> actions;
  {
    const MutexLock lock(mutex_);
    actions.swap(actions_);
  }
  for (const auto& action : actions) guarded([&] { action(router_); });
  return !actions.empty();
}

bool MpiEngine::may_stop() {
  {
    const MutexLock lock(mutex_);
    if (!stopping_ || !actions_.empty()) return false;
  }
  guarded([&] { router_.announce_exit(); });
  if (router_.has_failed()) return true;
  if (router_.all_exit()) return !router_.is_sending();
  const bool in_order = exit_code_ == 0 && !router_.is_unsettled();
  const MutexLock lock(mutex_);
  return !in_order && Clock::now() >= stop_by_;
}

void MpiEngine::rest() {
  if (expected_.exchange(false)) last_event_ = Clock::now();
  const auto idle = Clock::now() - last_event_;
  if (idle < kSpin) return;
  if (idle < kYield)
    ::sched_yield();
  else
    sleep(idle);
}

// A thread that changes this condition checks sleep_ afterwards.
void MpiEngine::sleep(Clock::duration idle) {
  MutexLock lock(mutex_);
  if (!actions_.empty()) return;
  sleep_ = Sleep::kShort;
  const bool attended = attended_.exchange(false) || waiters_ > 0;
  if (!attended) sleep_ = Sleep::kLong;
  const auto longest = attended ? Clock::duration(kLongestPauseOfWaiters)
                                : Clock::duration(kLongestPause);
  if (expected_ || (!attended && attended_)) {
    // Poll at intervals.
  } else if (!stopping_ && (router_.has_failed() || !router_.is_busy())) {
    wakes_.wait(lock);
  } else {
    wakes_.wait_for(lock, std::min(idle / 8, longest));
  }
  sleep_ = Sleep::kNone;
}

void MpiEngine::wake() {
  const MutexLock lock(mutex_);
  wakes_.notify_one();
}

void MpiEngine::expect_soon() {
  expected_ = true;
  if (sleep_ != Sleep::kNone) wake();
}

void MpiEngine::attend() {
  attended_ = true;
  if (sleep_ == Sleep::kLong) wake();
}

void MpiEngine::submit(std::function<void(MpiRouter&)> action) {
  const MutexLock lock(mutex_);
  actions_.push_back(std::move(action));
  if (sleep_ != Sleep::kNone) wakes_.notify_one();
}

void MpiEngine::count_out() {
  if (--groups_ == 0 && exiting_) stop();
}

// Groups in static objects are destroyed after this: count_out() then does the
// same.
void MpiEngine::at_exit(int code, void*) {
  MpiEngine& engine = of_process();
  if (!engine.process_.is_current()) return;  // a forked child has no engine
  engine.exit_code_ = code;
  engine.exiting_ = true;
  if (engine.groups_ == 0) engine.stop();
}

// MPI is finalised when all processes are ready for it. A process that ends
// with an error, or was in a group that broke, does not wait long for others,
// which may never end: mpirun then detects its exit and ends them.
void MpiEngine::stop() {
  MutexLock lock(mutex_);
  if (state_ != State::kRunning) return;
  stopping_ = true;
  stop_by_ = Clock::now() + kFarewell;
  wakes_.notify_one();
  while (state_ == State::kRunning) changed_.wait(lock);
}

}  // namespace lockstep
