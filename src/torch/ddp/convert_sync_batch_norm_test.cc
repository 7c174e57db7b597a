// Tests which layers convert_sync_batch_norm() finds in modules of any shape;
// sync_batch_norm_test.cc tests their results.
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "lockstep/torch/sync_batch_norm.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// Two branches that share their weights.
struct Siamese : torch::nn::Module {
  Siamese() {
    register_module("left", branch);
    register_module("right", branch);
    register_module("norm", norm);
    register_module("again", norm);
  }
  torch::nn::Sequential branch =
      torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
  BatchNorm norm = BatchNorm(3);
};

TEST(ConvertSyncBatchNorm, TakesWhatIsRegisteredTwiceOnce) {
  run_ranks("shm", 2, [](const Group& group) {
    Siamese net;
    EXPECT_EQ(convert_sync_batch_norm(net, group), 2);
    EXPECT_EQ(net.norm->statistics(), BatchStatistics::kOfGroup);
    const auto converted =
        std::dynamic_pointer_cast<SyncBatchNormImpl>(net.branch->ptr(1));
    ASSERT_TRUE(converted);
    EXPECT_EQ(net.branch->named_children()["1"], converted);
    for (const auto& branch :
         {net.named_children()["left"], net.named_children()["right"]})
      EXPECT_EQ(branch, net.branch.ptr());
  });
}

}  // namespace
}  // namespace lockstep
