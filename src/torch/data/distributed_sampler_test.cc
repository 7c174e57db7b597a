#include "lockstep/torch/distributed_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/data/sample_order.h"
#include "src/base/mutex.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAreArray;
using testing::HasSubstr;

std::vector<std::int64_t> deal_out(DistributedSampler& sampler,
                                   std::size_t batch_size) {
  std::vector<std::int64_t> dealt;
  while (const auto batch = sampler.next(batch_size))
    dealt.insert(dealt.end(), batch->begin(), batch->end());
  return dealt;
}

TEST(DistributedSampler, DealsOutTheRanksSequenceInBatches) {
  run_ranks(kBackend, 3, [](const Group& group) {
    DistributedSampler sampler(20, {.group = group, .seed = 5});
    EXPECT_EQ(sampler.size(), 7u);
    for (const std::size_t epoch : {0, 1, 2}) {
      sampler.set_epoch(epoch);
      sampler.reset();
      const auto expected = sampler_sequence(
          20,
          {.world_size = 3, .rank = group->rank(), .seed = 5, .epoch = epoch});
      EXPECT_EQ(sampler.indices(), expected);
      EXPECT_EQ(sampler.next(4)->size(), 4u);
      EXPECT_EQ(sampler.next(4)->size(), 3u);
      EXPECT_EQ(sampler.next(4), std::nullopt);
      sampler.reset();
      EXPECT_EQ(deal_out(sampler, 2), expected);
    }
  });
}

TEST(DistributedSampler, DropsOrRepeatsWhatTheRanksDoNotDivide) {
  run_ranks(kBackend, 3, [](const Group& group) {
    DistributedSampler all(
        5, {.group = group, .shuffle = false, .drop_last = false});
    DistributedSampler fewer(
        5, {.group = group, .shuffle = false, .drop_last = true});
    const std::int64_t rank = group->rank();
    EXPECT_THAT(deal_out(all, 9), ElementsAreArray({rank, (rank + 3) % 5}));
    EXPECT_THAT(deal_out(fewer, 9), ElementsAreArray({rank}));
    EXPECT_EQ(all.size(), 2u);
    EXPECT_EQ(fewer.size(), 1u);
  });
}

struct Numbers : torch::data::datasets::Dataset<Numbers, std::int64_t> {
  std::int64_t get(std::size_t index) override {
    return static_cast<std::int64_t>(index);
  }
  std::optional<std::size_t> size() const override { return 12; }
};

auto loader_of(const DistributedSampler& sampler, std::size_t workers) {
  return torch::data::make_data_loader(
      Numbers(), sampler,
      torch::data::DataLoaderOptions().batch_size(2).workers(workers));
}

// What one pass of the loader delivers.
template <class DataLoader>
std::vector<std::int64_t> pass_of(DataLoader& loader) {
  std::vector<std::int64_t> seen;
  for (const auto& batch : *loader)
    seen.insert(seen.end(), batch.begin(), batch.end());
  return seen;
}

TEST(DistributedSampler, TellsADataLoadersCopyTheEpoch) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedSampler sampler(12, {.group = group});
    const auto loader = loader_of(sampler, 0);
    for (const std::size_t epoch : {0, 3}) {
      sampler.set_epoch(epoch);
      EXPECT_EQ(pass_of(loader), sampler_sequence(12, {.world_size = 2,
                                                       .rank = group->rank(),
                                                       .epoch = epoch}));
    }
  });
}

std::string archive_of(const DistributedSampler& sampler) {
  std::ostringstream stream;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(stream);
  return stream.str();
}

void load(DistributedSampler& sampler, const std::string& archive) {
  std::istringstream stream(archive);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  sampler.load(in);
}

TEST(DistributedSampler, GoesOnWhereItWasSaved) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedSampler saved(12, {.group = group});
    saved.set_epoch(4);
    saved.reset();
    saved.next(2);
    DistributedSampler loaded(12, {.group = group});
    load(loaded, archive_of(saved));
    EXPECT_EQ(loaded.epoch(), 4u);
    EXPECT_EQ(loaded.indices(), deal_out(saved, 3));
    loaded.set_epoch(5);
    EXPECT_EQ(loaded.indices().size(), 6u) << "the next epoch is whole";
    loaded.reset();
    loaded.next(1);
    load(saved, archive_of(loaded));
    EXPECT_EQ(saved.epoch(), 5u);
    EXPECT_EQ(deal_out(saved, 3), deal_out(loaded, 3));
    loaded.reset();
    EXPECT_EQ(deal_out(loaded, 3).size(), 6u);
  });
}

// The samples of epoch 4 after the first 4 of all ranks, then epochs as a loop
// has them.
template <class DataLoader>
void expect_the_rest(DistributedSampler& sampler, DataLoader& loader,
                     int rank) {
  const auto sequence = [&](std::size_t epoch, std::int64_t consumed) {
    return sampler_sequence(
        12,
        {.world_size = 2, .rank = rank, .epoch = epoch, .consumed = consumed});
  };
  EXPECT_EQ(sampler.indices(), sequence(4, 4));
  sampler.set_epoch(4);  // as a loop from the resumed epoch on does
  EXPECT_EQ(pass_of(loader), sequence(4, 4));
  EXPECT_EQ(pass_of(loader), sequence(4, 0)) << "another pass is whole";
  sampler.set_epoch(5);
  EXPECT_EQ(pass_of(loader), sequence(5, 0));
}

TEST(DistributedSampler, GoesOnInADataLoader) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedSampler saved(12, {.group = group});
    saved.set_epoch(4);
    saved.reset();
    saved.next(2);
    for (const std::size_t workers : {0, 2}) {
      DistributedSampler before(12, {.group = group});
      load(before, archive_of(saved));
      const auto made_later = loader_of(before, workers);
      expect_the_rest(before, made_later, group->rank());

      DistributedSampler after(12, {.group = group});
      const auto made_first = loader_of(after, workers);
      EXPECT_EQ(pass_of(made_first).size(), 6u);
      load(after, archive_of(saved));
      expect_the_rest(after, made_first, group->rank());

      after.resume(4, 4);
      expect_the_rest(after, made_first, group->rank());
    }
  });
}

TEST(DistributedSampler, HasNothingLeftAfterAWholeEpochButForOnePass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    DistributedSampler sampler(12, {.group = group});
    sampler.resume(0, 12);
    const auto loader = loader_of(sampler, 0);
    EXPECT_EQ(pass_of(loader).size(), 0u);
    EXPECT_EQ(pass_of(loader).size(), 6u);
  });
}

TEST(DistributedSampler, RefusesToSaveAPlaceThatALoaderIsAheadOf) {
  run_ranks(kBackend, 2, [](const Group& group) {
    for (const std::size_t workers : {0, 2}) {
      DistributedSampler sampler(12, {.group = group});
      const auto loader = loader_of(sampler, workers);
      EXPECT_NO_THROW(archive_of(sampler));
      auto batch = loader->begin();
      EXPECT_EQ(batch->size(), 2u);
      EXPECT_THAT(error_text([&] { archive_of(sampler); }),
                  AllOf(HasSubstr("ahead of the program"),
                        HasSubstr("call resume(epoch, steps")));
      // The program knows that it has had one batch.
      sampler.resume(0, 2 * group->size());
      DistributedSampler other(12, {.group = group});
      load(other, archive_of(sampler));
      EXPECT_EQ(deal_out(other, 2).size(), 4u);
      sampler.set_epoch(1);
      load(other, archive_of(sampler));
      EXPECT_EQ(other.epoch(), 1u);
      EXPECT_EQ(deal_out(other, 2).size(), 6u);
    }
  });
}

TEST(DistributedSampler, RefusesToGoOnBeforeTheFirstSample) {
  run_ranks(kBackend, 1, [](const Group& group) {
    DistributedSampler sampler(12, {.group = group});
    EXPECT_THAT(error_text([&] { sampler.resume(0, -1); }),
                AllOf(HasSubstr("after -1 samples"), HasSubstr("next: ")));
  });
}

TEST(DistributedSampler, GoesOnWithAnotherNumberOfRanks) {
  constexpr std::size_t kLength = 20;
  Mutex mutex;
  std::string archive;
  std::vector<std::int64_t> seen;
  const auto take = [&](DistributedSampler& sampler, std::size_t count) {
    const auto samples = *sampler.next(count);
    const MutexLock lock(mutex);
    seen.insert(seen.end(), samples.begin(), samples.end());
  };
  run_ranks(kBackend, 2, [&](const Group& group) {
    DistributedSampler sampler(kLength, {.group = group, .seed = 3});
    take(sampler, 4);
    if (group->rank() == 0) archive = archive_of(sampler);
  });
  run_ranks(kBackend, 3, [&](const Group& group) {
    DistributedSampler sampler(kLength, {.group = group, .seed = 3});
    load(sampler, archive);
    take(sampler, kLength);
  });
  std::ranges::sort(seen);
  EXPECT_EQ(seen, sampler_sequence(kLength, {.shuffle = false}));
}

}  // namespace
}  // namespace lockstep
