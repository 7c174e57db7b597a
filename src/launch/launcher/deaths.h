// The workers of this host that have failed, and which of them caused the
// failures of the others.
//
// It knows no processes: it is told of each end, and asked for the time. The
// rule is that of src/faults/root_cause.h.
//
// Threads: one thread at a time.
// Errors:  none.
#pragma once

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/faults/root_cause.h"
#include "src/launch/record/worker_exception.h"

namespace lockstep {

struct Death {
  int local_rank = 0;
  std::chrono::steady_clock::time_point when{};
  RankEnd end{};
  std::optional<WorkerException> exception{};  // that the worker wrote down
};

class Deaths {
 public:
  bool any() const { return !deaths_.empty(); }
  bool has(int local_rank) const {
    return std::ranges::find(deaths_, local_rank, &Death::local_rank) !=
           deaths_.end();
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

  // The one that ends the job, if there are any.
  const Death& cause() const;

 private:
  std::vector<RankEnd> ends() const;

  std::vector<Death> deaths_;
  bool closed_ = false;
  Deadline cause_due_ = Deadline::never();
};

}  // namespace lockstep
