#include "lockstep/torch/tensor_loader.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/rnn.h>
#include <torch/types.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sample_order.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::int64_t> all_of(const TensorSource& source) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(source.size()));
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return indices;
}

std::vector<std::vector<at::Tensor>> batches_of(
    const TensorSource& source, const TensorLoaderOptions& options) {
  TensorLoader loader(source, all_of(source), options);
  std::vector<std::vector<at::Tensor>> batches;
  while (auto batch = loader.next(Deadline::never()))
    batches.push_back(*std::move(batch));
  EXPECT_EQ(std::ssize(batches), loader.batch_count());
  return batches;
}

std::string refusal_of(const TensorSource& source,
                       const TensorLoaderOptions& options = {}) {
  return error_text([&] { batches_of(source, options); });
}

// Sample i is i + 1 numbers, and i.
struct Sequences : TensorSource {
  std::int64_t size() const override { return 7; }
  std::vector<at::Tensor> read(std::int64_t index,
                               std::uint64_t epoch) const override {
    return {at::full({index + 1}, static_cast<double>(epoch), at::kFloat),
            at::scalar_tensor(index, at::kLong)};
  }
};

// Reads like Sequences, but for what `change` says.
struct Changed final : Sequences {
  using Change = std::function<std::vector<at::Tensor>(std::int64_t index)>;
  explicit Changed(Change wanted) : change(std::move(wanted)) {}
  std::vector<at::Tensor> read(std::int64_t index,
                               std::uint64_t /*epoch*/) const override {
    return change(index);
  }
  Change change;
};

TEST(TensorLoader, StacksEachFieldOfTheSamplesInTheirOrder) {
  const at::Tensor inputs = at::arange(30, at::kFloat).view({10, 3});
  const at::Tensor targets = at::arange(10, at::kLong);
  const TensorDataset dataset({inputs, targets});
  for (const std::int64_t workers : {1, 3}) {
    const auto batches =
        batches_of(dataset, {.batch_size = 4, .workers = workers});
    ASSERT_EQ(batches.size(), 3);
    for (std::int64_t i = 0; i < 3; ++i) {
      const auto& batch = batches[static_cast<std::size_t>(i)];
      ASSERT_EQ(batch.size(), 2);
      const std::int64_t end = std::min<std::int64_t>(10, 4 * i + 4);
      EXPECT_TRUE(batch[0].equal(inputs.slice(0, 4 * i, end)));
      EXPECT_TRUE(batch[1].equal(targets.slice(0, 4 * i, end)));
    }
  }
}

TEST(TensorLoader, DropsASmallerLastBatchIfAskedTo) {
  const auto batches = batches_of(TensorDataset({at::arange(10)}),
                                  {.batch_size = 4, .drop_last = true});
  ASSERT_EQ(batches.size(), 2);
  EXPECT_EQ(batches[1][0].size(0), 4);
}

TEST(TensorLoader, LetsTheCallerJoinSamplesOfDifferentLengths) {
  const auto pad = [](const TensorSamples& samples) {
    std::vector<at::Tensor> sequences, numbers;
    for (const auto& sample : samples) {
      sequences.push_back(sample[0]);
      numbers.push_back(sample[1]);
    }
    return std::vector<at::Tensor>{
        torch::nn::utils::rnn::pad_sequence(sequences, true),
        at::stack(numbers)};
  };
  const auto batches = batches_of(
      Sequences(), {.batch_size = 3, .epoch = 2, .workers = 2, .collate = pad});
  ASSERT_EQ(batches.size(), 3);
  EXPECT_TRUE(
      batches[1][0].equal(at::full({3, 6}, 2.0).mul(at::ones({3, 6}).tril(3))));
  EXPECT_TRUE(batches[1][1].equal(at::arange(3, 6)));
}

TEST(TensorLoader, NamesTheFieldWhoseShapesOrTypesDiffer) {
  EXPECT_THAT(refusal_of(Sequences()),
              AllOf(HasSubstr("its sample 1 (counted from 0) has as field 0 a "
                              "Float of the shape [2], and its first one a "
                              "Float of the shape [1]"),
                    HasSubstr("next:    give the loader a .collate")));
  EXPECT_THAT(refusal_of(Changed([](std::int64_t index) {
                return std::vector{at::zeros({2}),
                                   index < 2 ? at::zeros({1}) : at::arange(1)};
              })),
              HasSubstr("sample 2 (counted from 0) has as field 1 a Long"));
  EXPECT_THAT(refusal_of(Changed([](std::int64_t index) {
                return std::vector<at::Tensor>(
                    static_cast<std::size_t>(index + 1), at::zeros({2}));
              })),
              HasSubstr("sample 1 (counted from 0) has 2 fields, and its first "
                        "one has 1"));
  EXPECT_THAT(refusal_of(Changed([](std::int64_t /*index*/) {
                return std::vector{at::Tensor()};
              })),
              HasSubstr("sample 0 (counted from 0) has an undefined tensor as "
                        "field 0"));
}

TEST(TensorLoader, PassesTheErrorsOfReadingAndOfCollatingToTheConsumer) {
  const Changed broken([](std::int64_t index) {
    if (index == 5) throw InvalidArgument("no sample 5");
    return std::vector{at::full({1}, static_cast<double>(index))};
  });
  TensorLoader loader(broken, all_of(broken), {.batch_size = 2, .workers = 3});
  EXPECT_TRUE(loader.next(Deadline::never()));
  EXPECT_TRUE(loader.next(Deadline::never()));
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(error_text([&] { loader.next(Deadline::never()); }),
                HasSubstr("no sample 5"));
  TensorLoaderOptions refuses{.batch_size = 2, .workers = 3};
  refuses.collate = [](const TensorSamples&) -> std::vector<at::Tensor> {
    throw InvalidArgument("no batch");
  };
  EXPECT_THAT(refusal_of(Sequences(), refuses), HasSubstr("no batch"));
}

TEST(TensorLoader, ReplacesAndNamesAsManyBrokenSamplesAsPermitted) {
  const Changed broken([](std::int64_t index) {
    if (index == 2) throw InvalidArgument("no sample 2");
    return std::vector{at::full({1}, static_cast<double>(index))};
  });
  TensorLoader loader(broken, all_of(broken),
                      {.batch_size = 7, .workers = 2, .max_broken = 1});
  const auto batch = loader.next(Deadline::never());
  ASSERT_TRUE(batch);
  EXPECT_TRUE((*batch)[0].flatten().equal(
      torch::tensor({0., 1., 3., 3., 4., 5., 6.}, at::kFloat)));
  ASSERT_EQ(loader.broken().size(), 1);
  EXPECT_EQ(loader.broken()[0].index, 2);
  EXPECT_THAT(loader.broken()[0].message, HasSubstr("no sample 2"));
}

TEST(TensorLoader, ReadsAndCollatesWithoutAutogradAndWithOneComputeThread) {
  const int before = at::get_num_threads();
  at::set_num_threads(3);
  std::atomic<int> calls = 0;
  const auto check = [&] {
    ++calls;
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_EQ(at::get_num_threads(), 1);
  };
  const Changed source([&](std::int64_t /*index*/) {
    check();
    return std::vector{at::ones({2})};
  });
  batches_of(source, {.batch_size = 4,
                      .workers = 2,
                      .collate = [&](const TensorSamples& samples) {
                        check();
                        return stack_samples(samples);
                      }});
  EXPECT_EQ(calls, 7 + 2);
  EXPECT_EQ(at::get_num_threads(), 3);
  // The setting of threads to come, which a worker must not change either.
  std::thread([] { EXPECT_EQ(at::get_num_threads(), 3); }).join();
  at::set_num_threads(before);
}

TEST(TensorLoader, GivesTheConsumerMemoryOfItsOwn) {
  const at::Tensor rows = at::arange(4);
  const TensorDataset dataset({rows});
  const auto batches = batches_of(
      dataset, {.batch_size = 1, .collate = [](const TensorSamples& samples) {
                  return samples[0];
                }});
  batches[2][0].fill_(9);
  EXPECT_TRUE(rows.equal(at::arange(4)));
}

// A batch that cannot be made is no broken sample.
TEST(TensorLoader, PassesAnErrorOfCollatingOnAfterTheBatchesBefore) {
  const TensorDataset dataset({at::arange(6)});
  TensorLoader loader(dataset, all_of(dataset),
                      {.batch_size = 2,
                       .workers = 3,
                       .max_broken = 6,
                       .collate = [](const TensorSamples& samples) {
                         if (samples[0][0].item<std::int64_t>() == 4)
                           throw InvalidArgument("no batch");
                         return stack_samples(samples);
                       }});
  EXPECT_TRUE(loader.next(Deadline::never()));
  EXPECT_TRUE(loader.next(Deadline::never()));
  EXPECT_THAT(error_text([&] { loader.next(Deadline::never()); }),
              HasSubstr("no batch"));
  EXPECT_EQ(loader.broken().size(), 0);
}

TEST(TensorLoader, GoesOnWithTheRestOfAnEpochOnAnotherNumberOfRanks) {
  const TensorDataset dataset({at::arange(24)});
  std::multiset<std::int64_t> seen;
  const auto see = [&](int ranks, std::int64_t consumed, std::int64_t most) {
    for (int rank = 0; rank < ranks; ++rank) {
      TensorLoader loader(dataset,
                          sampler_sequence(24, {.world_size = ranks,
                                                .rank = rank,
                                                .epoch = 3,
                                                .consumed = consumed}),
                          {.batch_size = 2});
      for (std::int64_t i = 0; i < most; ++i) {
        const auto batch = loader.next(Deadline::never());
        if (!batch) break;
        for (std::int64_t j = 0; j < (*batch)[0].size(0); ++j)
          seen.insert((*batch)[0][j].item<std::int64_t>());
      }
    }
  };
  see(2, 0, 3);    // 12 samples
  see(3, 12, 99);  // the others
  ASSERT_EQ(seen.size(), 24);
  std::int64_t expected = 0;
  for (const std::int64_t sample : seen) EXPECT_EQ(sample, expected++);
}

TEST(TensorLoader, RefusesWhatIsNoDataset) {
  EXPECT_THAT(error_text([] { TensorDataset({}); }), HasSubstr("needs a"));
  EXPECT_THAT(error_text([] { TensorDataset({at::zeros({})}); }),
              HasSubstr("has no dimension"));
  EXPECT_THAT(error_text([] {
                TensorDataset({at::zeros({3}), at::ones({2})});
              }),
              HasSubstr("has 2 rows, and the first one 3"));
  const Sequences source;
  EXPECT_THAT(error_text([&] { TensorLoader(source, {7}); }),
              HasSubstr("has 7 samples"));
  EXPECT_THAT(error_text([&] { TensorLoader(source, {0}, {.batch_size = 0}); }),
              HasSubstr("must be at least 1"));
  EXPECT_THAT(error_text([&] { TensorLoader(source, {0}, {.collate = {}}); }),
              HasSubstr("needs a .collate"));
}

}  // namespace
}  // namespace lockstep
