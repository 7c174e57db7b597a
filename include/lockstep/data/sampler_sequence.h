// The samples that a rank sees in an epoch, in order: the sequence of PyTorch's
// DistributedSampler, index for index.
//
// The sequence is a pure function of its arguments, so ranks need not
// communicate: each shuffles all indices alike (a Mersenne Twister seeded with
// seed + epoch), pads or cuts them to a multiple of the world size, and takes
// every world_size-th.
//
// Errors:  InvalidArgument for a negative length, a world size below 1 and a
//          rank outside 0 … world_size - 1.
#pragma once

#include <cstdint>
#include <vector>

namespace lockstep {

struct SamplerOptions {
  int world_size = 1;
  int rank = 0;
  // When false, the order is 0, 1, 2, … in every epoch.
  bool shuffle = true;
  // Must be the same on every rank; otherwise ranks repeat and miss samples.
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  // When the world size does not divide the length: drop the last samples
  // instead of repeating the first ones.
  bool drop_last = false;
};

// The number of indices per rank for `length` samples; the same for all ranks.
std::int64_t samples_per_rank(std::int64_t length,
                              const SamplerOptions& options);

// The indices of options.rank, in order.
std::vector<std::int64_t> sampler_sequence(std::int64_t length,
                                           const SamplerOptions& options);

// Every world_size-th index from `rank` on, without padding. All ranks together
// see each sample once, as an evaluation needs. The ranks' lengths differ by at
// most 1.
std::vector<std::int64_t> each_sample_once(std::int64_t length, int world_size,
                                           int rank);

}  // namespace lockstep
