// Tests of replicas that diverge on purpose, and of the report about them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>

#include "lockstep/base/error.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/recording_group.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Flips bit `bit` of element `element`, without autograd's knowledge.
void flip(const at::Tensor& parameter, std::int64_t element, unsigned bit) {
  auto* place = static_cast<float*>(parameter.data_ptr()) + element;
  std::uint32_t bits = 0;
  std::memcpy(&bits, place, sizeof bits);
  bits ^= std::uint32_t{1} << bit;
  std::memcpy(place, &bits, sizeof bits);
}

// Trains `steps` correct steps, but calls `fault` with the model after step
// `at`. Returns what step_done() threw, and when.
struct Outcome {
  std::string message;
  std::int64_t step = 0;
  std::optional<ReplicaDifference> difference;
};
template <class Fault>
Outcome train_with(const Group& group, std::int64_t every, std::int64_t at,
                   const Fault& fault) {
  auto model =
      DistributedDataParallel(std::make_shared<Net>(), small_buckets(group));
  torch::optim::SGD optimizer(model.parameters(), 0.01);
  RunningFingerprint fingerprint(model.module(),
                                 {.group = group, .every = every});
  for (std::int64_t step = 1; step <= 400; ++step) {
    optimizer.zero_grad();
    backward(model, *group, static_cast<int>(step % 7));
    optimizer.step();
    if (step == at) fault(*model);
    try {
      fingerprint.step_done();
    } catch (const Mismatch& error) {
      return {error.what(), step, fingerprint.difference()};
    }
  }
  return {"no error", 0, fingerprint.difference()};
}

TEST(RunningFingerprint, FindsNamesAndLocatesABitFlippedAtStep300) {
  // With 3 ranks the message names the odd one; with 2, both values.
  for (const int ranks : {2, 3, 4}) {
    run_ranks(kBackend, ranks, [&](const Group& group) {
      const Outcome outcome = train_with(group, 100, 300, [&](Net& net) {
        if (group->rank() == 1) flip(net.second->weight, 13, 20);
      });
      EXPECT_EQ(outcome.step, 300);
      ASSERT_TRUE(outcome.difference);
      const ReplicaDifference& found = *outcome.difference;
      EXPECT_EQ(found.tensor, "second.weight");
      EXPECT_EQ(found.first_element, 13);
      EXPECT_THAT(found.index, ElementsAre(1, 5));
      EXPECT_EQ(found.elements, 1);
      EXPECT_EQ(found.differing_bits, 1);
      EXPECT_EQ(found.more_tensors, 0);
      EXPECT_THAT(found.ranks, ElementsAre(1));
      EXPECT_EQ(found.ranks_are_fewer, ranks > 2);
      ASSERT_THAT(found.values, SizeIs(ranks));
      EXPECT_NE(found.values[0], found.values[1]);
      EXPECT_FLOAT_EQ(
          static_cast<float>(found.largest),
          static_cast<float>(std::abs(found.values[0] - found.values[1])));
      EXPECT_THAT(outcome.message,
                  AllOf(HasSubstr("differ after step 300"),
                        HasSubstr("second.weight[1, 5] is "),
                        HasSubstr("on rank 1 and "),
                        HasSubstr("since:   after step 200"),
                        HasSubstr("one bit of memory flipped")));
      EXPECT_EQ(outcome.message.find("differ:  rank 1 from most") !=
                    std::string::npos,
                ranks > 2);
    });
  }
}

TEST(RunningFingerprint, LocatesTheSameElementManyStepsLater) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const Outcome outcome = train_with(group, 50, 310, [&](Net& net) {
      if (group->rank() == 2) flip(net.first->bias, 4, 22);
    });
    EXPECT_EQ(outcome.step, 350);
    ASSERT_TRUE(outcome.difference);
    EXPECT_EQ(outcome.difference->tensor, "first.bias");
    EXPECT_EQ(outcome.difference->first_element, 4);
    EXPECT_THAT(outcome.difference->ranks, ElementsAre(2));
    EXPECT_EQ(outcome.difference->elements, 1);
  });
}

TEST(RunningFingerprint, SaysNothingOfReplicasThatStayTheSame) {
  run_ranks(kBackend, 3, [](const Group& group) {
    EXPECT_EQ(train_with(group, 7, 10, [](Net&) {}).message, "no error");
    // The same change on all ranks is not a divergence.
    EXPECT_EQ(
        train_with(group, 7, 10, [](Net& net) { flip(net.first->bias, 0, 3); })
            .message,
        "no error");
  });
}

TEST(RunningFingerprint, TellsMoreThanOneTensorAndALargestDifference) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const Outcome outcome = train_with(group, 5, 10, [&](Net& net) {
      if (group->rank() != 0) return;
      const torch::NoGradGuard no_grad;
      net.first->weight[2][3] += 1;
      net.first->weight[7][0] += 8;
      net.third->bias += 1;
    });
    EXPECT_EQ(outcome.step, 10);
    EXPECT_THAT(outcome.message,
                AllOf(HasSubstr("first.weight[2, 3] is "),
                      HasSubstr("2 elements of the tensor differ, by at most "),
                      HasSubstr("; 1 tensor more differs"),
                      HasSubstr("likely:  an optimizer's step")));
    EXPECT_NEAR(outcome.difference->largest, 8, 1e-5);
    EXPECT_THAT(outcome.difference->ranks, ElementsAre(0));
  });
}

TEST(RunningFingerprint, FindsSignsOfZeroAndNaN) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const at::Tensor signs = torch::zeros({3});
    if (group->rank() == 1) signs[1] = -0.0;
    const auto sign = find_difference(*group, {{"signs", signs}});
    ASSERT_TRUE(sign);
    EXPECT_EQ(sign->first_element, 1);
    EXPECT_EQ(sign->largest, 0);

    const at::Tensor odd = torch::zeros({3});
    if (group->rank() == 1) odd[2] = std::numeric_limits<float>::quiet_NaN();
    const auto nan = find_difference(*group, {{"odd", odd}});
    ASSERT_TRUE(nan);
    EXPECT_TRUE(std::isnan(nan->largest));
    EXPECT_THAT(describe(*nan), HasSubstr("is nan on rank 1 and 0 on rank 0"));
  });
}

TEST(RunningFingerprint, ComparesLargeTensorsOfAnyTypeAndStrides) {
  run_ranks(kBackend, 2, [](const Group& group) {
    // The last element of the third block.
    constexpr std::int64_t kElement = 3 * 65536 - 1;
    for (const auto type : {at::kFloat, at::kDouble, at::kLong, at::kBFloat16,
                            at::kBool, at::kByte}) {
      const at::Tensor tensor = torch::zeros({400, 1000}, type).t();
      EXPECT_FALSE(find_difference(*group, {{"tensor", tensor}})) << type;
      if (group->rank() == 0) tensor[kElement / 400][kElement % 400] = 1;
      const auto found = find_difference(*group, {{"tensor", tensor}});
      ASSERT_TRUE(found) << type;
      EXPECT_EQ(found->first_element, kElement) << type;
      EXPECT_EQ(found->elements, 1) << type;
      EXPECT_EQ(found->largest, 1) << type;
    }
  });
}

TEST(RunningFingerprint, TellsTensorsThatCannotBeCompared) {
  run_ranks(kBackend, 3, [](const Group& group) {
    const at::Tensor own = group->rank() == 1 ? at::Tensor() : torch::ones({2});
    const auto found = find_difference(
        *group, {{"first", torch::ones({})}, {"gradient", own}});
    ASSERT_TRUE(found);
    EXPECT_EQ(describe(*found),
              "gradient has another shape or type, or is missing, on rank 1");
  });
}

TEST(RunningFingerprint, WatchesBuffersWhenAsked) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto net = std::make_shared<NetWithBatchNorm>();
    net->norm->running_mean.fill_(group->rank());
    RunningFingerprint without(net, {.group = group});
    EXPECT_NO_THROW(without.check());
    RunningFingerprint with(net, {.group = group, .buffers = true});
    EXPECT_THAT(message_of([&] { with.check(); }),
                HasSubstr("norm.running_mean[0] is"));
  });
}

TEST(RunningFingerprint, CostsOneSmallOperationAPeriod) {
  run_ranks(kBackend, 2, [](const Group& real) {
    const RecordingGroup recorded(real);
    RunningFingerprint fingerprint(std::make_shared<Net>(),
                                   {.group = recorded.group(), .every = 3});
    for (int step = 0; step < 8; ++step) fingerprint.step_done();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("all_gather", "all_gather"));
    fingerprint.set_step(2);
    fingerprint.step_done();
    EXPECT_THAT(recorded.take_events(), SizeIs(1));
  });
}

TEST(RunningFingerprint, RefusesAPeriodOfNothing) {
  run_ranks(kBackend, 1, [](const Group& group) {
    EXPECT_THAT(message_of([&] {
                  RunningFingerprint(std::make_shared<Net>(),
                                     {.group = group, .every = 0});
                }),
                HasSubstr("the minimum is 1"));
  });
}

}  // namespace
}  // namespace lockstep
