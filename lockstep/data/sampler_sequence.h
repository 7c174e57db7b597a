// Which samples a rank sees in an epoch, and in which order: the sequence of
// PyTorch's DistributedSampler, index for index.
//
// A pure function of its arguments, so that ranks need not talk: each shuffles
// all indices alike (a Mersenne Twister seeded with seed + epoch), pads or cuts
// them to a multiple of the world size, and takes every world_size-th.
//
// Threads: pure functions.
// Errors:  InvalidArgument for a negative length, a world size below 1 and a
//          rank outside 0 … world_size - 1.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int world_size = 1;
  int rank = 0;
  // Without it the order is 0, 1, 2, … in every epoch.
  bool shuffle = true;
  // The same on every rank, or samples are seen twice and never.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  // When the ranks do not divide the length: leave the last samples out, rather
  // than repeat the first ones until they do.
  bool drop_last = false;
};

// How many indices each rank gets of `length` samples: the same for all ranks.
std::int64_t samples_per_rank(std::int64_t length,
                              const SamplerOptions& options);

// The indices of options.rank, in order.
std::vector<std::int64_t> sampler_sequence(std::int64_t length,
                                           const SamplerOptions& options);

// Every world_size-th index from `rank` on, without padding: over all ranks
// each sample once, as a test set must be counted. The ranks' lengths differ by
// at most 1.
std::vector<std::int64_t> each_sample_once(std::int64_t length, int world_size,
                                           int rank);

}  // namespace lockstep
