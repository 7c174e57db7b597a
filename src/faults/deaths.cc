#include "src/faults/deaths.h"

#include <utility>

namespace lockstep {

void Deaths::add(Death death) {
  deaths_.push_back(std::move(death));
  if (closed_) return;
  const auto time = time_for_cause(ends());
  cause_due_ = time.count() == 0 ? Deadline::never()
                                 : Deadline(deaths_.front().when + time);
}

bool Deaths::know_their_cause() const {
  return cause_due_.expired() || time_for_cause(ends()).count() == 0;
}

const Death& Deaths::cause() const { return deaths_[root_cause(ends())]; }

std::vector<RankEnd> Deaths::ends() const {
  std::vector<RankEnd> ends;
  for (const Death& death : deaths_) ends.push_back(death.end);
  return ends;
}

}  // namespace lockstep
