// Which ranks hold up the others of a job.
//
// All ranks of a job take equally long per step, because the fast ones wait for
// the slow ones. So ranks are compared by the time that they do not wait.
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "src/tools/status/job_status.h"

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

struct OwnTime {
  int rank;
  double total, data, compute;  // seconds per step
  double own() const { return data + compute; }
};

std::vector<OwnTime> own_times(std::span<const RankStatus> ranks) {
  std::vector<OwnTime> times;
  for (const RankStatus& rank : ranks) {
    if (!rank.steps.window) continue;
    const StepWindow& window = *rank.steps.window;
    const double total = window.time.count() / window.steps;
    const double data = window.data.count() / window.steps;
    const double waited = window.waited.count() / window.steps;
    times.push_back({.rank = rank.rank,
                     .total = total,
                     .data = data,
                     .compute = std::max(0.0, total - data - waited)});
  }
  return times;
}

// Of all but one; `times` has at least two.
template <class Member>
double median_of_others(const std::vector<OwnTime>& times, std::size_t except,
                        Member member) {
  std::vector<double> values;
  for (std::size_t i = 0; i < times.size(); ++i)
    if (i != except) values.push_back(member(times[i]));
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

std::vector<Straggler> slow_ranks(std::span<const RankStatus> ranks) {
  std::vector<Straggler> found;
  const std::vector<OwnTime> times = own_times(ranks);
  for (std::size_t i = 0; times.size() > 1 && i < times.size(); ++i) {
    const OwnTime& time = times[i];
    const double others = median_of_others(
        times, i, [](const OwnTime& other) { return other.own(); });
    if (time.own() <= kSlower * others ||
        time.own() - others <= kShareOfStep * time.total)
      continue;
    const double more_data =
        time.data - median_of_others(times, i, [](const OwnTime& other) {
          return other.data;
        });
    const bool by_data = 2 * more_data > time.own() - others;
    found.push_back({.rank = time.rank,
                     .part = by_data ? StepPart::kData : StepPart::kCompute,
                     .seconds = time.own(),
                     .others = others});
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

std::vector<Straggler> stalled_ranks(std::span<const RankStatus> ranks) {
  std::vector<Straggler> found;
  for (const RankStatus& rank : ranks) {
    if (rank.steps.waits) continue;
    const bool in_data = rank.steps.phase == StepPhase::kData;
    found.push_back({.kind = Straggler::Kind::kStalled,
                     .rank = rank.rank,
                     .part = in_data ? StepPart::kData : StepPart::kCompute,
                     .seconds = *rank.seconds_since_step});
  }
  if (found.size() == ranks.size()) return {};  // none of them waits
  if (found.empty())
    found.push_back({.kind = Straggler::Kind::kAllWait,
                     .rank = -1,
                     .part = StepPart::kWaiting,
                     .seconds = *ranks.front().seconds_since_step});
  return found;
}

}  // namespace

std::vector<Straggler> stragglers_of(std::span<const RankStatus> ranks) {
  if (ranks.empty()) return {};
  return is_stalled(ranks) ? stalled_ranks(ranks) : slow_ranks(ranks);
}

}  // namespace lockstep
