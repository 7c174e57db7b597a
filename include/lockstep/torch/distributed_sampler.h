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
// caller's reach; so copies share the epoch: set_epoch() on the caller's
// sampler takes effect in the loader's from its next reset() on.
//
// Threads: single-threaded, like LibTorch's own; the caller may use set_epoch()
//          while another thread uses a copy.
// Errors:  InvalidArgument without options.group and without a default group.
#pragma once

#include <torch/data/samplers/base.h>

#include <atomic>
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
  // As in lockstep/data/sampler_sequence.h.
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

  // From the next reset() on, this sampler and all copies shuffle for `epoch`.
  // Without this call every epoch has the same order.
  void set_epoch(std::size_t epoch) { *epoch_ = epoch; }
  std::size_t epoch() const { return *epoch_; }

  // The number of samples that this rank gets per epoch.
  std::size_t size() const;

  // This rank's samples in the epoch that set_epoch() names, in order: those
  // that next() returns, and the order that a Loader takes. After load(), in
  // the epoch that was loaded: those of the rest.
  std::vector<std::int64_t> indices() const;

  // Goes to the beginning of the epoch; `new_size` replaces the dataset's size.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;

  // The next `batch_size` indices, fewer at the end of the epoch, then nothing.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  // The epoch and how far next() has come in it, so that a run can go on there,
  // also with another number of ranks: the samples that no rank has had are
  // divided anew, until the next reset(). All ranks must have had equally many.
  // A program that gives indices() to a Loader counts for itself, and resumes
  // with SamplerOptions::consumed. InvalidArgument for negative numbers.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<std::int64_t> indices_after(std::int64_t consumed) const;
  void begin_after(std::int64_t consumed);

  std::size_t dataset_size_;
  int rank_;
  int world_size_;
  bool shuffle_;
  bool drop_last_;
  std::uint64_t seed_;
  std::shared_ptr<std::atomic<std::size_t>> epoch_;
  std::size_t begun_epoch_ = 0;        // of indices_
  std::int64_t consumed_ = 0;          // of it by all ranks, before indices_
  std::vector<std::int64_t> indices_;  // of the current epoch
  std::size_t dealt_ = 0;              // of indices_
};

}  // namespace lockstep
