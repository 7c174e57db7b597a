// The samples of this rank: PyTorch's DistributedSampler, index for index.
//
//     lockstep::DistributedSampler sampler(train.size());
//     auto loader =
//         torch::data::make_data_loader(std::move(train), sampler, 64);
//     for (std::size_t epoch = 0; epoch < 5; ++epoch) {
//       sampler.set_epoch(epoch);
//       for (auto& batch : *loader) …
//     }
//
// It is a LibTorch sampler. A data loader copies its sampler, out of the
// caller's reach, and resets the copy at the start of each pass; so copies
// share the epoch and the place in it: set_epoch(), resume() and load() on the
// caller's sampler take effect in the loader's from its next reset() on.
//
// Threads: single-threaded, like LibTorch's own; the caller may use
// set_epoch(),
//          resume() and load() while another thread uses a copy.
// Errors:  InvalidArgument without options.group and without a default group.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

struct DistributedSamplerOptions {
  // Gives rank and world size; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // As in lockstep/data/sample_order.h.
  bool shuffle = true;
  std::uint64_t seed = 0;
  bool drop_last = false;
};

class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  // For samples 0 … `size` - 1 of a dataset, the same on every rank. Starts at
  // the beginning of epoch 0.
  explicit DistributedSampler(std::size_t size,
                              const DistributedSamplerOptions& options = {});

  // From the next reset() on, this sampler and all copies shuffle for `epoch`,
  // from its first sample on if it is another epoch than before. Without this
  // call every epoch has the same order.
  void set_epoch(std::size_t epoch);
  std::size_t epoch() const;

  // Goes on within `epoch`, of which all ranks together have had `consumed`
  // samples: the next pass of this sampler or of a copy, in a data loader that
  // exists or not, has the rest, also with another number of ranks. Later
  // passes are whole. InvalidArgument for a negative number.
  //
  // A program that counts its steps resumes so, after `step` steps of `epoch`:
  //
  //     sampler.resume(epoch, step * batch_size * group->size());
  void resume(std::size_t epoch, std::int64_t consumed);

  // The number of samples that this rank gets per epoch.
  std::size_t size() const;

  // This rank's samples in the epoch that set_epoch() names, in order: those
  // that next() returns, and the order that a Loader takes. After resume() or
  // load(), those of the rest, until a later pass of next() or set_epoch() with
  // another epoch.
  std::vector<std::int64_t> indices() const;

  // Goes to the beginning of the epoch or, if no pass has begun since resume()
  // or load(), of its rest. `new_size` replaces the dataset's size, of this
  // copy alone.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // The next `batch_size` indices, fewer at the end of the epoch, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // The epoch and how far next() has come in it, so that load() goes on there
  // like resume(). All ranks must have had equally many samples.
  //
  // InvalidArgument if a copy, as in a data loader, has come further: loaders
  // with workers take indices ahead of the program, so that the sampler cannot
  // know how many samples the program has had. Such a program, and one that
  // gives indices() to a Loader, counts its steps and calls resume().
  // InvalidArgument for an archive with negative numbers.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct Place;

  std::vector<std::int64_t> indices_from(std::size_t epoch,
                                         std::int64_t consumed) const;
  void begin_pass();

  std::size_t dataset_size_;
  int rank_;
  int world_size_;
  bool shuffle_;
  bool drop_last_;
  std::uint64_t seed_;
  std::shared_ptr<Place> place_;       // that copies share
  std::uint64_t pass_ = 0;             // of indices_, in numbers of place_
  std::vector<std::int64_t> indices_;  // of the current pass
  std::size_t dealt_ = 0;              // of indices_
};

}  // namespace lockstep
