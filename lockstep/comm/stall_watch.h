// Which operations have waited too long, and for whom: what the watchdog says,
// without its thread.
//
// Threads: one at a time. It asks backends, through PendingWork::missing(),
//          which ranks they wait for.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/recorder.h"

namespace lockstep {

// An operation that has waited for longer than it should.
struct Stall {
  struct Missing {
    int rank = 0;         // in the group
    int rank_in_job = 0;  // in the job
  };

  std::string operation{};  // as describe() has it
  std::string group{};
  int rank = 0;  // of this process, in the group
  std::chrono::duration<double> waited{};
  std::vector<Missing> missing{};  // may be empty: then nobody can tell
};

// One line. `activities` says what ranks of the job are doing; a missing rank
// that is not among them did not answer.
std::string describe(const Stall& stall,
                     const std::map<int, std::string>& activities);

class StallWatch {
 public:
  using Time = Recorder::Time;

  // How many missing ranks a line names.
  static constexpr std::size_t kMostNamed = 3;

  StallWatch(std::shared_ptr<const Recorder> recorder,
             std::chrono::duration<double> patience);

  // What has come to wait longer than `patience`: each operation once, and of a
  // group's collectives, which run one after the other, only the oldest.
  std::vector<Stall> look(Time now);

  // Before this moment look() would find nothing new.
  Time next_look() const { return next_look_; }

 private:
  const std::shared_ptr<const Recorder> recorder_;
  const Recorder::Time::duration patience_;
  Time next_look_ = Time::min();
  std::set<std::uint64_t> reported_;  // the numbers of operations
};

}  // namespace lockstep
