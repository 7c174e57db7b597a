#include "lockstep/data/sample_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <unordered_map>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/random_permutation.h"
#include "src/data/sample_random.h"

namespace lockstep {
namespace {

// Their indices would take 8 TiB.
constexpr std::int64_t kMostSamples = std::int64_t{1} << 40;

void check(std::int64_t length, int world_size, int rank) {
  if (length < 0 || length > kMostSamples)
    throw InvalidArgument(
        fmt::format("cannot divide {} samples over ranks: expected 0 to {}",
                    length, kMostSamples));
  if (world_size < 1)
    throw InvalidArgument(fmt::format(
        "cannot divide samples over {} ranks: the world size must be at least "
        "1",
        world_size));
  if (rank < 0 || rank >= world_size)
    throw InvalidArgument(fmt::format(
        "cannot choose samples for rank {}: with world size {} ranks go from 0 "
        "to {}",
        rank, world_size, world_size - 1));
}

// Of each draw with replacement, as PyTorch's generator makes a double of two
// 32-bit numbers: 53 bits.
double uniform_of(std::mt19937& twister) {
  const std::uint64_t upper = twister();
  const std::uint64_t drawn = upper << 32 | twister();
  return static_cast<double>(drawn & ((std::uint64_t{1} << 53) - 1)) * 0x1p-53;
}

// The running sums of `weights`, divided by the last.
std::vector<double> cumulative(std::span<const double> weights) {
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  const double sum = sums.back();
  for (double& part : sums) part /= sum;
  sums.back() = 1;
  return sums;
}

void check_weights(std::span<const double> weights, std::int64_t count,
                   bool replacement) {
  double sum = 0;
  for (const double& weight : weights) {
    if (!(weight >= 0) || std::isinf(weight))
      throw InvalidArgument(fmt::format(
          "cannot draw by weights: that of sample {} is {}; expected a finite "
          "number, 0 or more",
          &weight - weights.data(), weight));
    sum += weight;
  }
  if (count > 0 && (sum == 0 || std::isinf(sum)))
    throw InvalidArgument(fmt::format(
        "cannot draw by weights: the sum of {} weights is {}; expected a "
        "finite number above 0",
        weights.size(), sum));
  const auto drawable = std::ssize(weights) - std::ranges::count(weights, 0.0);
  if (count < 0 || count > kMostSamples || (!replacement && count > drawable))
    throw InvalidArgument(fmt::format(
        "cannot draw {} samples{}: {} of {} have a weight above 0", count,
        replacement ? "" : " without replacement", drawable, weights.size()));
}

std::vector<std::int64_t> draw_once_each(std::span<const double> weights,
                                         std::int64_t count,
                                         std::mt19937& twister) {
  // The smallest of exponentially distributed times of arrival; their
  // logarithms, since a tiny weight has a time beyond all numbers.
  std::vector<std::pair<double, std::int64_t>> times;
  times.reserve(weights.size());
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double time = std::log(-std::log1p(-uniform_of(twister)));
    if (weights[i] > 0)
      times.emplace_back(time - std::log(weights[i]),
                         static_cast<std::int64_t>(i));
  }
  std::ranges::partial_sort(times, times.begin() + count);
  std::vector<std::int64_t> order;
  for (std::int64_t i = 0; i < count; ++i)
    order.push_back(times[static_cast<std::size_t>(i)].second);
  return order;
}

}  // namespace

std::int64_t samples_per_rank(std::int64_t length,
                              const SamplerOptions& options) {
  check(length, options.world_size, options.rank);
  if (options.consumed < 0)
    throw InvalidArgument(fmt::format(
        "cannot go on after {} samples: the number must not be negative",
        options.consumed));
  // Padding may have been consumed too.
  const std::int64_t rest =
      std::max<std::int64_t>(length - options.consumed, 0);
  const std::int64_t even = rest / options.world_size;
  const bool uneven = rest % options.world_size != 0;
  return uneven && !options.drop_last ? even + 1 : even;
}

std::vector<std::int64_t> share_of_rank(std::span<const std::int64_t> order,
                                        const SamplerOptions& options) {
  const std::int64_t length = std::ssize(order);
  std::vector<std::int64_t> sequence(
      static_cast<std::size_t>(samples_per_rank(length, options)));
  if (sequence.empty()) return sequence;
  std::int64_t position = options.consumed + options.rank;
  for (std::int64_t& index : sequence) {
    // Padding repeats the order from its start as often as needed.
    index = order[static_cast<std::size_t>(position % length)];
    position += options.world_size;
  }
  return sequence;
}

std::vector<std::int64_t> sampler_sequence(std::int64_t length,
                                           const SamplerOptions& options) {
  check(length, options.world_size, options.rank);
  if (options.shuffle)
    return share_of_rank(
        random_permutation(length, options.seed + options.epoch), options);
  std::vector<std::int64_t> order(static_cast<std::size_t>(length));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  return share_of_rank(order, options);
}

std::vector<std::int64_t> weighted_order(std::span<const double> weights,
                                         const WeightedOptions& options) {
  const std::int64_t count =
      options.count == 0 ? std::ssize(weights) : options.count;
  check_weights(weights, count, options.replacement);
  std::mt19937 twister(static_cast<std::uint32_t>(options.seed));
  if (!options.replacement) return draw_once_each(weights, count, twister);
  if (count == 0) return {};
  const std::vector<double> sums = cumulative(weights);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  for (std::int64_t& index : order)
    index = std::ranges::lower_bound(sums, uniform_of(twister)) - sums.begin();
  return order;
}

std::vector<double> class_balanced_weights(
    std::span<const std::int64_t> labels) {
  std::unordered_map<std::int64_t, double> counts;
  for (const std::int64_t label : labels) ++counts[label];
  std::vector<double> weights;
  weights.reserve(labels.size());
  for (const std::int64_t label : labels) weights.push_back(1 / counts[label]);
  return weights;
}

// Sample k of the n of a class, in random order, comes between k / n and
// (k + 1) / n of the whole. Each has a random place of its own there: with
// equal ones, ranks that divide the order in turn would get some classes and
// not others.
std::vector<std::int64_t> stratified_order(std::span<const std::int64_t> labels,
                                           std::uint64_t seed) {
  struct ClassCount {
    double all = 0;
    double placed = 0;
  };
  std::unordered_map<std::int64_t, ClassCount> classes;
  for (const std::int64_t label : labels) ++classes[label].all;
  std::vector<std::pair<double, std::int64_t>> places;
  places.reserve(labels.size());
  for (const std::int64_t index :
       random_permutation(std::ssize(labels), seed)) {
    ClassCount& its = classes[labels[static_cast<std::size_t>(index)]];
    const double offset =
        SampleRandom(seed, 0, static_cast<std::uint64_t>(index)).uniform(0, 1);
    places.emplace_back((its.placed + offset) / its.all, index);
    ++its.placed;
  }
  std::ranges::sort(places);
  std::vector<std::int64_t> order;
  order.reserve(places.size());
  for (const auto& [place, index] : places) order.push_back(index);
  return order;
}

std::vector<std::int64_t> each_sample_once(std::int64_t length, int world_size,
                                           int rank) {
  check(length, world_size, rank);
  std::vector<std::int64_t> indices;
  for (std::int64_t index = rank; index < length; index += world_size)
    indices.push_back(index);
  return indices;
}

}  // namespace lockstep
