// Which ranks hold up the others of a job.
//
// All ranks of a job take equally long per step, because the fast ones wait for
// the slow ones. So ranks are compared by the time that they do not wait.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "apps/status/job_status.h"

namespace lockstep {
namespace {

// Slower by this factor, and by this share of a whole step, which leaves out
// the random differences between ranks.
constexpr double kSlower = 1.2;
constexpr double kShareOfStep = 0.05;
// A job is stalled when no rank has ended a step for as long as this, and for
// this many steps.
constexpr double kStalledSeconds = 1;
constexpr double kStalledSteps = 3;

// Fewer steps, among them the first ones, say nothing of the next.
constexpr int kEnoughSteps = 5;

// Seconds per step: on average, and the medians without waits and of data,
// because now and then a rank saves a checkpoint or is stopped for a while.
struct OwnTime {
  int rank;
  double total, own, data;
  bool knows_data;
};

std::vector<OwnTime> own_times(std::span<const RankStatus> ranks) {
  std::vector<OwnTime> times;
  for (const RankStatus& rank : ranks) {
    if (!rank.steps.window) continue;
    const StepWindow& window = *rank.steps.window;
    times.push_back({.rank = rank.rank,
                     .total = window.time.count() / window.steps,
                     .own = window.own_per_step.count(),
                     .data = window.data_per_step.count(),
                     .knows_data = rank.steps.phase != StepPhase::kUnknown});
  }
  return times;
}

// The median of all values but one; there are at least two.
class MedianOfOthers {
 public:
  MedianOfOthers(const std::vector<OwnTime>& times, double OwnTime::*member) {
    for (const OwnTime& time : times) sorted_.push_back(time.*member);
    std::ranges::sort(sorted_);
  }
  double than(double value) const {
    const std::size_t middle = (sorted_.size() - 2) / 2;
    return value <= sorted_[middle] ? sorted_[middle + 1] : sorted_[middle];
  }

 private:
  std::vector<double> sorted_;
};

std::vector<Straggler> slow_ranks(std::span<const RankStatus> ranks) {
  std::vector<Straggler> found;
  const bool enough = std::ranges::all_of(ranks, [](const RankStatus& rank) {
    return !rank.steps.window || rank.steps.window->steps >= kEnoughSteps;
  });
  const std::vector<OwnTime> times = own_times(ranks);
  if (!enough || times.size() < 2) return found;
  const MedianOfOthers own(times, &OwnTime::own), data(times, &OwnTime::data);
  for (const OwnTime& time : times) {
    const double others = own.than(time.own);
    const double more = time.own - others;
    if (time.own <= kSlower * others || more <= kShareOfStep * time.total)
      continue;
    Straggler slow{.rank = time.rank, .seconds = time.own, .others = others};
    if (time.knows_data)
      slow.part = 2 * (time.data - data.than(time.data)) > more
                      ? StepPart::kData
                      : StepPart::kCompute;
    found.push_back(slow);
  }
  return found;
}

// Whether no rank has ended a step for long.
bool is_stalled(std::span<const RankStatus> ranks) {
  double longest_step = 0;
  for (const OwnTime& time : own_times(ranks))
    longest_step = std::max(longest_step, time.total);
  return std::ranges::all_of(ranks, [&](const RankStatus& rank) {
    return rank.seconds_since_step.value_or(0) >
           kStalledSeconds + kStalledSteps * longest_step;
  });
}

// The one rank that has ended fewer steps than all others, as one that is
// stopped while it waits; or null.
const RankStatus* rank_behind(std::span<const RankStatus> ranks) {
  const auto steps_of = [](const RankStatus& rank) { return rank.steps.steps; };
  const auto last = std::ranges::min_element(ranks, {}, steps_of);
  const auto as_many = std::ranges::count(ranks, steps_of(*last), steps_of);
  return as_many == 1 && ranks.size() > 1 ? &*last : nullptr;
}

std::vector<Straggler> stalled_ranks(std::span<const RankStatus> ranks) {
  std::vector<Straggler> found;
  for (const RankStatus& rank : ranks) {
    if (rank.steps.waits) continue;
    Straggler stalled{.kind = Straggler::Kind::kStalled,
                      .rank = rank.rank,
                      .seconds = *rank.seconds_since_step};
    if (rank.steps.phase != StepPhase::kUnknown)
      stalled.part = rank.steps.phase == StepPhase::kData ? StepPart::kData
                                                          : StepPart::kCompute;
    found.push_back(stalled);
  }
  if (found.size() == ranks.size()) return {};  // none of them waits
  if (found.empty()) {
    const RankStatus* const behind = rank_behind(ranks);
    const RankStatus& shown = behind != nullptr ? *behind : ranks.front();
    found.push_back({.kind = Straggler::Kind::kAllWait,
                     .rank = behind != nullptr ? behind->rank : -1,
                     .part = StepPart::kWaiting,
                     .seconds = *shown.seconds_since_step});
  }
  return found;
}

}  // namespace

std::vector<Straggler> stragglers_of(std::span<const RankStatus> ranks) {
  if (ranks.empty()) return {};
  return is_stalled(ranks) ? stalled_ranks(ranks) : slow_ranks(ranks);
}

}  // namespace lockstep
