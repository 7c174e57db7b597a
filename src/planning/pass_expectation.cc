#include "src/planning/pass_expectation.h"

#include <algorithm>
#include <utility>

namespace lockstep {

PassExpectation::PassExpectation(Rule rule, std::size_t parameters)
    : rule_(rule),
      counts_(parameters,
              rule == Rule::kAsAtFirst ? GradientTracker::kUnknown : 1),
      arrived_locally_(parameters, 0),
      unused_(parameters, 0) {}

bool PassExpectation::allows(std::size_t parameter,
                             GradientTracker::Status status) const {
  using Status = GradientTracker::Status;
  if (rule_ != Rule::kAsAtFirst) return status != Status::kRepeatedTooLate;
  const bool expected = status == Status::kFinal || status == Status::kPartial;
  return expected && !(others_know_ && unused(parameter));
}

PassExpectation::Indices PassExpectation::worth_telling(Indices missing) const {
  if (learns() && others_know_) return {};
  std::erase_if(missing, [this](std::size_t parameter) {
    return arrived_locally_[parameter] != 0;
  });
  return missing;
}

void PassExpectation::end_local_pass() {
  for (const std::size_t parameter : arriving_locally_)
    arrived_locally_[parameter] = 1;
  arriving_locally_.clear();
}

void PassExpectation::drop_gradients() {
  std::ranges::fill(arrived_locally_, char{0});
}

void PassExpectation::end_pass(const GradientTracker::Counts* counts) {
  drop_gradients();
  if (rule_ == Rule::kAnyGradient) std::ranges::fill(unused_, char{0});
  if (learns() && counts != nullptr) {
    counts_ = *counts;
    this_rank_knows_ = true;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] == 0) never_here_.push_back(i);
  }
  others_know_ = true;
}

}  // namespace lockstep
