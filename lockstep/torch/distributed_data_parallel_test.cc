#include "lockstep/torch/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>
#include <type_traits>

#include "lockstep/base/error.h"
#include "lockstep/comm/testing/run_ranks.h"
#include "lockstep/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr char kBackend[] = "reference";
using Group = std::shared_ptr<ProcessGroup>;

torch::optim::SGD sgd_with_momentum(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(std::move(parameters),
                           torch::optim::SGDOptions(0.1).momentum(0.9));
}

void expect_close(const std::vector<at::Tensor>& actual,
                  const std::vector<at::Tensor>& expected,
                  double tolerance = 1e-6) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_LE((actual[i] - expected[i]).abs().max().item<double>(), tolerance)
        << "tensor " << i;
}

// What one process learns from the whole batches.
template <class Module>
std::vector<at::Tensor> weights_of_one_process(Module model, int shares,
                                               int steps) {
  auto optimizer = sgd_with_momentum(model.parameters());
  train(
      model, optimizer,
      [&](int step) { return share_of_batch(step, 0, 1, shares); }, steps);
  return model.parameters();
}

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

struct Setting {
  int ranks;
  std::size_t first_bucket_bytes, bucket_bytes;
};
class Ranks : public testing::TestWithParam<Setting> {};

TEST_P(Ranks, LearnWhatOneProcessLearns) {
  const auto [ranks, first, later] = GetParam();
  const auto expected = weights_of_one_process(Net(), ranks, 6);
  run_ranks(kBackend, ranks, [&](const Group& group) {
    Net net;
    fill(net, group->rank());
    auto model = DistributedDataParallel(
        std::move(net),
        {.group = group, .first_bucket_bytes = first, .bucket_bytes = later});
    auto optimizer = sgd_with_momentum(model.parameters());
    train(
        model, optimizer,
        [&](int step) {
          return share_of_batch(step, group->rank(), ranks, ranks);
        },
        6);
    expect_close(model.parameters(), expected);
  });
}

INSTANTIATE_TEST_SUITE_P(
    AndBuckets, Ranks,
    testing::Values(Setting{1, 0, 0}, Setting{2, 0, 0}, Setting{2, 100, 200},
                    Setting{2, 1 << 20, 25 << 20}, Setting{3, 100, 200},
                    Setting{4, 1 << 20, 25 << 20}, Setting{4, 0, 150}),
    [](const auto& setting) {
      return std::to_string(setting.param.ranks) + "RanksCaps" +
             std::to_string(setting.param.first_bucket_bytes) + "And" +
             std::to_string(setting.param.bucket_bytes);
    });

}  // namespace
}  // namespace lockstep
