#include "lockstep/torch/distributed_sampler.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#include "lockstep/data/sampler_sequence.h"

namespace lockstep {
namespace {

constexpr char kEpoch[] = "epoch";
constexpr char kConsumed[] = "consumed";

}  // namespace

DistributedSampler::DistributedSampler(std::size_t size,
                                       const DistributedSamplerOptions& options)
    : dataset_size_(size),
      shuffle_(options.shuffle),
      drop_last_(options.drop_last),
      seed_(options.seed),
      epoch_(std::make_shared<std::atomic<std::size_t>>(0)) {
  const auto group = options.group ? options.group : default_group();
  rank_ = group->rank();
  world_size_ = group->size();
  reset();
}

std::size_t DistributedSampler::size() const {
  return static_cast<std::size_t>(samples_per_rank(
      static_cast<std::int64_t>(dataset_size_),
      {.world_size = world_size_, .rank = rank_, .drop_last = drop_last_}));
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  return indices_after(epoch() == begun_epoch_ ? consumed_ : 0);
}

std::vector<std::int64_t> DistributedSampler::indices_after(
    std::int64_t consumed) const {
  return sampler_sequence(static_cast<std::int64_t>(dataset_size_),
                          {.world_size = world_size_,
                           .rank = rank_,
                           .shuffle = shuffle_,
                           .seed = seed_,
                           .epoch = epoch(),
                           .drop_last = drop_last_,
                           .consumed = consumed});
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  dataset_size_ = new_size.value_or(dataset_size_);
  begin_after(0);
}

void DistributedSampler::begin_after(std::int64_t consumed) {
  indices_ = indices_after(consumed);
  begun_epoch_ = epoch();
  consumed_ = consumed;
  dealt_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(
    std::size_t batch_size) {
  if (dealt_ == indices_.size()) return std::nullopt;
  const auto begin = indices_.begin() + static_cast<std::ptrdiff_t>(dealt_);
  const std::size_t count = std::min(batch_size, indices_.size() - dealt_);
  dealt_ += count;
  return std::vector<std::size_t>(begin,
                                  begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto dealt = static_cast<std::int64_t>(dealt_);
  archive.write(kEpoch, c10::IValue(static_cast<std::int64_t>(epoch())));
  archive.write(kConsumed, c10::IValue(consumed_ + dealt * world_size_));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  c10::IValue consumed;
  archive.read(kEpoch, epoch);
  archive.read(kConsumed, consumed);
  if (epoch.toInt() < 0 || consumed.toInt() < 0)
    throw InvalidArgument(
        "cannot load a sampler: its archive has the epoch " +
        std::to_string(epoch.toInt()) + " and " +
        std::to_string(consumed.toInt()) +
        " samples\n  next:    load what DistributedSampler::save() wrote");
  set_epoch(static_cast<std::size_t>(epoch.toInt()));
  begin_after(consumed.toInt());
}

}  // namespace lockstep
