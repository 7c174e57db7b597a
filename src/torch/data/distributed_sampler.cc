#include "lockstep/torch/distributed_sampler.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/data/sample_order.h"
#include "src/base/mutex.h"

namespace lockstep {
namespace {

constexpr char kEpoch[] = "epoch";
constexpr char kConsumed[] = "consumed";

void check_place(std::int64_t epoch, std::int64_t consumed,
                 const std::string& next) {
  if (epoch >= 0 && consumed >= 0) return;
  throw InvalidArgument(
      "a sampler cannot go on in epoch " + std::to_string(epoch) + " after " +
      std::to_string(consumed) + " samples\n  next:    " + next);
}

}  // namespace

// A pass begins where `epoch` and `consumed` say. LibTorch's data loader resets
// its copy before each pass, also before the first, so a reset() ends the pass
// only if a sample of it was asked for.
struct DistributedSampler::Place {
  struct State {
    std::size_t epoch = 0;
    std::int64_t consumed = 0;  // by all ranks, before the pass
    std::uint64_t pass = 1;     // the number of times the place was set
    bool begun = false;
    std::size_t dealt = 0;  // in the pass, by the copy that called next() last
  };

  void go_to(std::size_t epoch, std::int64_t consumed)
      LOCKSTEP_REQUIRES(mutex) {
    state = {.epoch = epoch, .consumed = consumed, .pass = state.pass + 1};
  }
  State copy() const {
    const MutexLock lock(mutex);
    return state;
  }

  mutable Mutex mutex;
  State state LOCKSTEP_GUARDED_BY(mutex);
};

DistributedSampler::DistributedSampler(std::size_t size,
                                       const DistributedSamplerOptions& options)
    : dataset_size_(size),
      shuffle_(options.shuffle),
      drop_last_(options.drop_last),
      seed_(options.seed),
      place_(std::make_shared<Place>()) {
  const auto group = options.group ? options.group : default_group();
  rank_ = group->rank();
  world_size_ = group->size();
  begin_pass();
}

void DistributedSampler::set_epoch(std::size_t epoch) {
  const MutexLock lock(place_->mutex);
  if (epoch != place_->state.epoch) place_->go_to(epoch, 0);
}

std::size_t DistributedSampler::epoch() const { return place_->copy().epoch; }

void DistributedSampler::resume(std::size_t epoch, std::int64_t consumed) {
  check_place(
      0, consumed,
      "name the number of samples that all ranks have had in the epoch");
  {
    const MutexLock lock(place_->mutex);
    place_->go_to(epoch, consumed);
  }
  begin_pass();
}

std::size_t DistributedSampler::size() const {
  return static_cast<std::size_t>(samples_per_rank(
      static_cast<std::int64_t>(dataset_size_),
      {.world_size = world_size_, .rank = rank_, .drop_last = drop_last_}));
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const Place::State place = place_->copy();
  return indices_from(place.epoch, place.consumed);
}

std::vector<std::int64_t> DistributedSampler::indices_from(
    std::size_t epoch, std::int64_t consumed) const {
  return sampler_sequence(static_cast<std::int64_t>(dataset_size_),
                          {.world_size = world_size_,
                           .rank = rank_,
                           .shuffle = shuffle_,
                           .seed = seed_,
                           .epoch = epoch,
                           .drop_last = drop_last_,
                           .consumed = consumed});
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  dataset_size_ = new_size.value_or(dataset_size_);
  {
    const MutexLock lock(place_->mutex);
    if (place_->state.begun) place_->go_to(place_->state.epoch, 0);
  }
  begin_pass();
}

void DistributedSampler::begin_pass() {
  const Place::State place = place_->copy();
  indices_ = indices_from(place.epoch, place.consumed);
  pass_ = place.pass;
  dealt_ = 0;
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(
    std::size_t batch_size) {
  const std::size_t count = std::min(batch_size, indices_.size() - dealt_);
  const auto begin = indices_.begin() + static_cast<std::ptrdiff_t>(dealt_);
  dealt_ += count;
  {
    const MutexLock lock(place_->mutex);
    if (place_->state.pass == pass_) {
      place_->state.begun = true;
      place_->state.dealt = dealt_;
    }
  }
  if (count == 0) return std::nullopt;
  return std::vector<std::size_t>(begin,
                                  begin + static_cast<std::ptrdiff_t>(count));
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const Place::State place = place_->copy();
  if (place.begun && (place.pass != pass_ || place.dealt != dealt_))
    throw InvalidArgument(
        "cannot save a DistributedSampler in a pass of its copy: a data "
        "loader takes indices ahead of the program, which has had fewer\n"
        "  next:    save the epoch and the number of steps in it, and call "
        "resume(epoch, steps * batch size * ranks); or save after set_epoch() "
        "of the next epoch");
  const auto dealt = static_cast<std::int64_t>(place.dealt);
  archive.write(kEpoch, c10::IValue(static_cast<std::int64_t>(place.epoch)));
  archive.write(kConsumed, c10::IValue(place.consumed + dealt * world_size_));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue epoch;
  c10::IValue consumed;
  archive.read(kEpoch, epoch);
  archive.read(kConsumed, consumed);
  check_place(epoch.toInt(), consumed.toInt(),
              "load what DistributedSampler::save() wrote");
  resume(static_cast<std::size_t>(epoch.toInt()), consumed.toInt());
}

}  // namespace lockstep
