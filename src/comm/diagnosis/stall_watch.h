// Finds the operations that have waited too long, and the ranks that they wait
// for: the watchdog's logic without its thread.
//
// Threads: one thread at a time. It asks backends, through
//          PendingWork::missing(), which ranks they wait for.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/comm/diagnosis/recorder.h"

namespace lockstep {

// An operation that has waited too long.
struct Stall {
  struct Missing {
    int rank = 0;         // in the group
    int rank_in_job = 0;  // in the job
  };

  std::string operation{};  // as describe() has it
  std::string group{};
  int rank = 0;  // of this process, in the group
  std::chrono::duration<double> waited{};
  std::vector<Missing> missing{};  // empty if unknown
};

// One line. `activities` holds what ranks of the job are doing; a missing rank
// that is not in it did not answer.
std::string describe(const Stall& stall,
                     const std::map<int, std::string>& activities);

class StallWatch {
 public:
  using Time = Recorder::Time;

  // The most missing ranks that a line names.
  static constexpr std::size_t kMostNamed = 3;

  StallWatch(std::shared_ptr<const Recorder> recorder,
             std::chrono::duration<double> timeout);

  // The operations that have newly waited longer than `timeout`. Reports each
  // operation once, and only the oldest of a group's collectives, which run one
  // after the other.
  std::vector<Stall> look(Time now);

  // Before this time look() finds nothing new.
  Time next_look() const { return next_look_; }

 private:
  const std::shared_ptr<const Recorder> recorder_;
  const Recorder::Time::duration timeout_;
  Time next_look_ = Time::min();
  std::set<std::uint64_t> reported_;  // the numbers of operations
};

}  // namespace lockstep
