#include "src/planning/pass_policy.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

using Status = GradientTracker::Status;

PassPolicy::Arrival final_arrival(const GradientTracker::Arrival& arrival) {
  return {.meaning = PassPolicy::Arrival::Meaning::kFinal,
          .first_bucket = arrival.first_bucket,
          .bucket_count = arrival.bucket_count};
}

}  // namespace

PassPolicy::PassPolicy(Rule rule, std::size_t parameters)
    : rule_(rule),
      counts_(parameters,
              rule == Rule::kAsAtFirst ? GradientTracker::kUnknown : 1),
      arrived_locally_(parameters, 0),
      unused_(parameters, 0) {}

PassKind PassPolicy::forward_begins() {
  if (said_ != PassKind::kReduced) said_ = here();
  return here();
}

PassKind PassPolicy::decide() {
  if (counter_) return counter_->begins();
  return std::exchange(said_, std::nullopt).value_or(here());
}

std::optional<PassKind> PassPolicy::end() {
  for (const std::size_t parameter : arriving_locally_)
    arrived_locally_[parameter] = 1;
  arriving_locally_.clear();
  return std::exchange(under_way_, std::nullopt);
}

std::optional<PassKind> PassPolicy::abandon() noexcept {
  arriving_locally_.clear();
  if (counter_) counter_->abandoned();
  return std::exchange(under_way_, std::nullopt);
}

PassPolicy::Arrival PassPolicy::begin_reduction() {
  if (rule_ == Rule::kAsAtFirst) tracker_->expect(counts_);
  return final_arrival(tracker_->begin_step());
}

PassPolicy::Arrival PassPolicy::arrived(std::size_t parameter) {
  if (counter_) counter_->arrived(parameter);
  if (under_way_ == PassKind::kLocal) {
    arriving_locally_.push_back(parameter);
    if (allows(parameter, Status::kFinal)) return {};
    return {.meaning = Arrival::Meaning::kUnexpected};
  }
  const auto arrival = tracker_->arrived(parameter);
  if (!allows(parameter, arrival.status))
    return {.meaning = Arrival::Meaning::kUnexpected};
  return arrival.status == Status::kFinal ? final_arrival(arrival) : Arrival{};
}

PassPolicy::Arrival PassPolicy::held(std::size_t parameter) {
  return final_arrival(tracker_->arrived(parameter));
}

bool PassPolicy::allows(std::size_t parameter, Status status) const {
  if (rule_ != Rule::kAsAtFirst) return status != Status::kRepeatedTooLate;
  const bool expected = status == Status::kFinal || status == Status::kPartial;
  return expected && !(others_know_ && unused(parameter));
}

PassPolicy::Indices PassPolicy::partly_arrived() const {
  Indices parameters;
  for (std::size_t i = 0; i < counts_.size(); ++i)
    if (counts_[i] == GradientTracker::kUnknown && tracker_->counts()[i] > 0)
      parameters.push_back(i);
  return parameters;
}

PassPolicy::Indices PassPolicy::worth_telling(Indices missing) const {
  if (learns() && others_know_) return {};
  std::erase_if(missing, [this](std::size_t parameter) {
    return arrived_locally_[parameter] != 0;
  });
  return missing;
}

void PassPolicy::drop_gradients() {
  std::ranges::fill(arrived_locally_, char{0});
}

void PassPolicy::end_reduction(Part part) {
  drop_gradients();
  if (rule_ == Rule::kAnyGradient) std::ranges::fill(unused_, char{0});
  if (learns() && part == Part::kTrains) {
    counts_ = tracker_->counts();
    this_rank_knows_ = true;
    for (std::size_t i = 0; i < counts_.size(); ++i)
      if (counts_[i] == 0) never_here_.push_back(i);
  }
  others_know_ = true;
}

}  // namespace lockstep
