// The order of samples: which ones a rank sees in an epoch, and the division of
// a data set into parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

// The samples that a rank sees in an epoch, in order: the sequence of PyTorch's
// DistributedSampler, index for index, and other orders, divided alike.
//
// A sequence is a pure function of its arguments, so ranks need not
// communicate: each shuffles all indices alike (a Mersenne Twister seeded with
// seed + epoch), pads or cuts them to a multiple of the world size, and takes
// every world_size-th.
//
//   // Draws rare classes as often as others.
//   const auto order = weighted_order(class_balanced_weights(labels),
//                                     {.seed = seed + epoch});
//   Loader loader(samples, share_of_rank(order, {.world_size = 4, .rank = 1}));
//
// Errors:  InvalidArgument for a negative length, a world size below 1, a rank
//          outside 0 … world_size - 1, and weights that cannot be drawn from.

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
  // The samples of the epoch that all ranks together have seen, whatever their
  // number was: the sequence is that of the remaining samples. A run that is
  // resumed within an epoch, with other ranks, loses and repeats no sample,
  // except those that padding repeats or drop_last leaves out at the end.
  std::int64_t consumed = 0;
};

// The number of indices per rank for `length` samples; the same for all ranks.
std::int64_t samples_per_rank(std::int64_t length,
                              const SamplerOptions& options);

// The indices of options.rank, in order.
std::vector<std::int64_t> sampler_sequence(std::int64_t length,
                                           const SamplerOptions& options);

// The part of options.rank of `order`, which must be the same on every rank,
// divided as sampler_sequence() divides its own: options.shuffle, seed and
// epoch do not count.
std::vector<std::int64_t> share_of_rank(std::span<const std::int64_t> order,
                                        const SamplerOptions& options);

struct WeightedOptions {
  // The number of draws; as many as there are weights when 0.
  std::int64_t count = 0;
  // Whether a sample may be drawn several times.
  bool replacement = true;
  std::uint64_t seed = 0;
};

// Samples drawn with probabilities in proportion to `weights`, which need not
// add up to 1. With replacement and more than one draw: the sequence of
// PyTorch's WeightedRandomSampler, index for index. Without replacement: its
// distribution (Efraimidis and Spirakis, "Weighted random sampling with a
// reservoir", 2006), with other random numbers.
std::vector<std::int64_t> weighted_order(std::span<const double> weights,
                                         const WeightedOptions& options = {});

// For each sample the weight with which all classes are drawn equally often.
std::vector<double> class_balanced_weights(
    std::span<const std::int64_t> labels);

// All samples in a random order in which each class is spread evenly: each
// stretch of it, and so the batches of all ranks in one step together, has
// about as much of the class as the whole. Of a step's samples each rank gets a
// random part.
std::vector<std::int64_t> stratified_order(std::span<const std::int64_t> labels,
                                           std::uint64_t seed);

// Every world_size-th index from `rank` on, without padding. All ranks together
// see each sample once, as an evaluation needs. The ranks' lengths differ by at
// most 1.
std::vector<std::int64_t> each_sample_once(std::int64_t length, int world_size,
                                           int rank);

// Splits a data set into parts by fractions: the DataPartitioner of PyTorch's
// tutorial "Writing Distributed Applications", index for index.
//
// Threads: immutable once made; share it freely.
// Errors:  InvalidArgument for fractions outside 0 … 1, for fractions whose sum
//          exceeds 1, and for a part out of range.

struct PartitionOptions {
  // The share of each part. The remainder belongs to no part.
  std::vector<double> sizes = {0.7, 0.2, 0.1};
  std::uint64_t seed = 1234;
};

class DataPartitioner {
 public:
  // Divides `length` samples. Each part's size is rounded down.
  explicit DataPartitioner(std::int64_t length,
                           const PartitionOptions& options = {});

  // The shuffled indices of a part; valid while this object lives.
  std::span<const std::int64_t> use(std::size_t part) const;

  // The number of parts.
  std::size_t size() const { return ends_.size(); }

 private:
  std::vector<std::int64_t> indices_;
  std::vector<std::size_t> ends_;  // of each part, in indices_
};

}  // namespace lockstep
