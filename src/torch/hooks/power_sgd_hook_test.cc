#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/hooked_weight.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kRows = 40, kColumns = 30;

// A matrix of this algebraic rank.
at::Tensor matrix_of_rank(std::int64_t rank, double phase) {
  return torch::mm(wave({kRows, rank}, phase),
                   wave({rank, kColumns}, 50 + phase));
}

at::Tensor gradient_of(std::size_t parameter) {
  return matrix_of_rank(2, 3.0 * static_cast<double>(parameter));
}

std::shared_ptr<PowerSgdHook> hook_of(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgdHook>(options);
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).norm().item<double>() / b.norm().item<double>();
}

// Compresses from the first pass on, without keeping state.
constexpr PowerSgdOptions kFromTheStart{
    .start_iteration = 0, .use_error_feedback = false, .warm_start = false};

TEST(PowerSgdHook, ReducesWithoutLossUntilItsStart) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto hook = hook_of({.start_iteration = 2});
    HookedWeight weight(group, {kRows, kColumns}, hook);
    const at::Tensor mean =
        (wave({kRows, kColumns}, 0) + wave({kRows, kColumns}, 1)) / 2;
    for (int pass = 0; pass < 2; ++pass)
      EXPECT_LE(
          relative_difference(
              weight.reduce(wave({kRows, kColumns}, group->rank())), mean),
          kTolerance);
    EXPECT_EQ(hook->report().compressed_passes, 0);
    EXPECT_EQ(hook->report().ratio(), 1);
    EXPECT_GT(relative_difference(
                  weight.reduce(wave({kRows, kColumns}, group->rank())), mean),
              kTolerance);
    EXPECT_EQ(hook->report().compressed_passes, 1);
    EXPECT_EQ(hook->report().passes, 3);
    EXPECT_EQ(hook->iteration(), 3);
  });
}

TEST(PowerSgdHook, LosesNothingOfAMatrixOfItsRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    PowerSgdOptions options = kFromTheStart;
    options.matrix_approximation_rank = 3;
    const auto hook = hook_of(options);
    HookedWeight weight(group, {kRows, kColumns}, hook);
    // Three ranks with a matrix of rank 1 each: their average has rank 3.
    const at::Tensor mean =
        (matrix_of_rank(1, 0) + matrix_of_rank(1, 1) + matrix_of_rank(1, 2)) /
        3;
    EXPECT_LE(relative_difference(
                  weight.reduce(matrix_of_rank(1, group->rank())), mean),
              1e-5);
    EXPECT_LE(hook->report().relative_error, 1e-3);
    EXPECT_DOUBLE_EQ(hook->report().ratio(),
                     kRows * kColumns / (3.0 * (kRows + kColumns)));
  });
}

TEST(PowerSgdHook, ReportsHowMuchOfTheGradientItDoesNotSend) {
  run_ranks(kBackend, 2, [](const Group& group) {
    PowerSgdOptions options = kFromTheStart;
    options.matrix_approximation_rank = 1;
    const auto hook = hook_of(options);
    HookedWeight weight(group, {kRows, kColumns}, hook);
    const at::Tensor gradient = matrix_of_rank(4, 0);  // the same on both
    const at::Tensor result = weight.reduce(gradient);
    EXPECT_GT(hook->report().relative_error, 0.01);
    EXPECT_NEAR(hook->report().relative_error,
                relative_difference(result, gradient), 1e-3);
  });
}

TEST(PowerSgdHook, FindsTheLargestDirectionWithAWarmStart) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto hook =
        hook_of({.start_iteration = 2, .use_error_feedback = false});
    HookedWeight weight(group, {kRows, kColumns}, hook);
    const at::Tensor gradient = matrix_of_rank(4, 0);
    const auto singular = torch::linalg_svdvals(gradient).square();
    const double best =
        std::sqrt(1 - (singular[0] / singular.sum()).item<double>());
    double error = 1;
    for (int pass = 0; pass < 60; ++pass)
      error = relative_difference(weight.reduce(gradient), gradient);
    EXPECT_NEAR(error, best, 1e-3);
  });
}

TEST(PowerSgdHook, SendsInLaterPassesWhatItLostInEarlierOnes) {
  run_ranks(kBackend, 2, [](const Group& group) {
    HookedWeight weight(group, {kRows, kColumns},
                        hook_of({.start_iteration = 2}));
    const auto gradient = [](double rank) { return matrix_of_rank(4, rank); };
    const at::Tensor mean = (gradient(0) + gradient(1)) / 2;
    at::Tensor sum = torch::zeros_like(mean);
    constexpr int kPasses = 100;
    for (int pass = 0; pass < 2; ++pass) weight.reduce(gradient(group->rank()));
    for (int pass = 0; pass < kPasses; ++pass)
      sum += weight.reduce(gradient(group->rank()));
    EXPECT_LE(relative_difference(sum / kPasses, mean), 0.1);
  });
}

TEST(PowerSgdHook, LeavesAloneWhatIsNotWorthCompressing) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto hook = hook_of(kFromTheStart);
    std::vector<NamedParameter> parameters{
        {"bias", torch::zeros({50}).requires_grad_()},
        {"scalar", torch::zeros({}).requires_grad_()},
        {"nothing", torch::zeros({0, 4}).requires_grad_()},
        {"small", torch::zeros({3, 4}).requires_grad_()},
        {"zeros", torch::zeros({kRows, kColumns}).requires_grad_()},
        {"filters", torch::zeros({16, 8, 3, 3}).requires_grad_()},
        {"turned", torch::zeros({kRows, kColumns}).t().requires_grad_()}};
    const auto reducer = Reducer::make(parameters, group);
    reducer->register_comm_hook(hook);
    at::Tensor loss = torch::zeros({});
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor& tensor = parameters[i].tensor;
      const at::Tensor factor = parameters[i].name == "zeros"
                                    ? torch::zeros(tensor.sizes())
                                    : wave(tensor.sizes(), group->rank());
      loss = loss + (tensor * factor).sum();
    }
    loss.backward();
    for (const auto& [name, tensor] : parameters) {
      const at::Tensor mean =
          (wave(tensor.sizes(), 0) + wave(tensor.sizes(), 1)) / 2;
      const bool is_mean = torch::allclose(tensor.grad(), mean);
      EXPECT_EQ(is_mean, name != "filters" && name != "zeros") << name;
    }
    EXPECT_TRUE(
        parameters[4].tensor.grad().equal(torch::zeros({kRows, kColumns})));
    EXPECT_EQ(
        hook->report().bytes_after,
        4 * (50 + 1 + 12 + (kRows + kColumns) + (16 + 72) + kRows * kColumns));
  });
}

TEST(PowerSgdHook, RecoversFromAPassOfZerosAndFromOneThatOverflowed) {
  run_ranks(kBackend, 2, [](const Group& group) {
    HookedWeight weight(group, {kRows, kColumns},
                        hook_of({.start_iteration = 2}));
    const at::Tensor zeros = torch::zeros({kRows, kColumns});
    const at::Tensor real = matrix_of_rank(1, 0);
    for (int pass = 0; pass < 2; ++pass) weight.reduce(real);
    weight.reduce(zeros);
    EXPECT_LE(relative_difference(weight.reduce(real), real), 1e-4);
    weight.reduce(torch::full_like(zeros, INFINITY));
    EXPECT_LE(relative_difference(weight.reduce(real), real), 1e-4);
  });
}

// Each has its own directions, which shared state could not hold.
TEST(PowerSgdHook, RemembersEachBucketAndEachMatrixOfOne) {
  for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{1} << 20})
    run_ranks(kBackend, 2, [bucket_bytes](const Group& group) {
      std::vector<NamedParameter> parameters;
      for (const char* name : {"a", "b", "c"})
        parameters.push_back(
            {name, torch::zeros({kRows, kColumns}).requires_grad_()});
      const auto reducer = Reducer::make(
          parameters, group,
          {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes});
      reducer->register_comm_hook(hook_of({.start_iteration = 2}));
      std::vector<at::Tensor> sums(3, torch::zeros({kRows, kColumns}));
      constexpr int kPasses = 60;
      for (int pass = 0; pass < kPasses; ++pass) {
        at::Tensor loss = torch::zeros({});
        for (std::size_t i = 0; i < 3; ++i) {
          parameters[i].tensor.mutable_grad().reset();
          loss = loss + (parameters[i].tensor * gradient_of(i)).sum();
        }
        loss.backward();
        for (std::size_t i = 0; i < 3; ++i)
          sums[i] = sums[i] + parameters[i].tensor.grad();
      }
      for (std::size_t i = 0; i < 3; ++i)
        EXPECT_LE(relative_difference(sums[i] / kPasses, gradient_of(i)), 0.05)
            << "parameter " << i << ", buckets of " << bucket_bytes;
    });
}

TEST(PowerSgdHook, ForgetsWhatItRememberedOfOtherParameters) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto hook = hook_of({.start_iteration = 2});
    {
      HookedWeight first(group, {kRows, kColumns}, hook);
      for (int pass = 0; pass < 3; ++pass) first.reduce(matrix_of_rank(4, 0));
    }
    // The first bucket's error would make this gradient wrong.
    HookedWeight second(group, {kRows, kColumns}, hook);
    const at::Tensor gradient = matrix_of_rank(1, 1);
    EXPECT_LE(relative_difference(second.reduce(gradient), gradient), 1e-4);
    HookedWeight longer(group, {kRows, 2 * kColumns}, hook);
    EXPECT_EQ(message_of([&] {
                longer.reduce(wave({kRows, 2 * kColumns}, 0));
              }),
              "no error");
  });
}

TEST(PowerSgdHook, GivesAllRanksTheSameBits) {
  run_ranks(kBackend, 3, [](const Group& group) {
    HookedWeight weight(
        group, {kRows, kColumns},
        hook_of({.matrix_approximation_rank = 2, .start_iteration = 2}));
    for (int pass = 0; pass < 6; ++pass) {
      const at::Tensor mine =
          weight.reduce(wave({kRows, kColumns}, pass + 0.1 * group->rank()))
              .contiguous();
      at::Tensor all = torch::empty({3, kRows, kColumns});
      group->all_gather(view(mine), view(all)).wait();
      EXPECT_TRUE(all[1].equal(all[0]) && all[2].equal(all[0])) << pass;
    }
  });
}

TEST(PowerSgdHook, RefusesOptionsThatCannotWork) {
  const auto refusal = [](const PowerSgdOptions& options) {
    return message_of([&] { PowerSgdHook hook(options); });
  };
  EXPECT_THAT(refusal({.matrix_approximation_rank = 0}),
              HasSubstr("matrix_approximation_rank is 0"));
  EXPECT_THAT(refusal({.start_iteration = 1}),
              HasSubstr("start_iteration is 1; it must be at least 2"));
  EXPECT_THAT(refusal({.min_compression_rate = -1}),
              HasSubstr("min_compression_rate"));
  EXPECT_THAT(refusal({.orthogonalization_epsilon = -1}),
              HasSubstr("orthogonalization_epsilon"));
  EXPECT_EQ(refusal({}), "no error");
}

}  // namespace
}  // namespace lockstep
