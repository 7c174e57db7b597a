// The ranks that have failed under one watcher, such as a launcher, and which
// of them caused the failures of the others, by the rule of root_cause.h.
//
// It knows no processes: it is told of each end, and says until when to wait
// for the cause.
//
// Threads: one thread at a time.
// Errors:  none.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/faults/root_cause.h"

namespace lockstep {

struct Death {
  int id = 0;  // the watcher's name of the rank
  std::chrono::steady_clock::time_point when{};
  RankEnd end{};
};

class Deaths {
 public:
  bool any() const { return !deaths_.empty(); }
  bool has(int id) const {
    return std::ranges::find(deaths_, id, &Death::id) != deaths_.end();
  }

  // In the order of the ends.
  void add(Death death);

  // Whether no further death can explain those so far, or none came in time.
  bool know_their_cause() const;
  // Until when one may come; never if none is awaited.
  Deadline cause_due() const { return cause_due_; }
  // From now on none is awaited: the others were asked to end.
  void close() {
    closed_ = true;
    cause_due_ = Deadline::never();
  }

  // Call it if there are any.
  const Death& cause() const;

 private:
  std::vector<RankEnd> ends() const;

  std::vector<Death> deaths_;
  bool closed_ = false;
  Deadline cause_due_ = Deadline::never();
};

}  // namespace lockstep
