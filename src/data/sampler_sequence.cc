#include "lockstep/data/sampler_sequence.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/data/random_permutation.h"

namespace lockstep {
namespace {

void check(std::int64_t length, int world_size, int rank) {
  if (length < 0)
    throw InvalidArgument(fmt::format(
        "cannot divide {} samples over ranks: the length must not be negative",
        length));
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

}  // namespace

std::int64_t samples_per_rank(std::int64_t length,
                              const SamplerOptions& options) {
  check(length, options.world_size, options.rank);
  const std::int64_t even = length / options.world_size;
  const bool uneven = length % options.world_size != 0;
  return uneven && !options.drop_last ? even + 1 : even;
}

std::vector<std::int64_t> sampler_sequence(std::int64_t length,
                                           const SamplerOptions& options) {
  const std::int64_t count = samples_per_rank(length, options);
  std::vector<std::int64_t> order;
  if (options.shuffle)
    order = random_permutation(length, options.seed + options.epoch);
  std::vector<std::int64_t> sequence(static_cast<std::size_t>(count));
  std::int64_t position = options.rank;
  for (std::int64_t& index : sequence) {
    // Padding repeats the order from its start as often as needed.
    const std::int64_t wrapped = position % length;
    index =
        options.shuffle ? order[static_cast<std::size_t>(wrapped)] : wrapped;
    position += options.world_size;
  }
  return sequence;
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
