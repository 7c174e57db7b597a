#include "src/torch/device/device_copies.h"

#include <gtest/gtest.h>

#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

TEST(CopiesToDevice, LeaveTensorsOfTheCpuWhereTheyAre) {
  const at::Tensor tensor = at::ones({3});
  EXPECT_TRUE(CopiesToDevice(at::kCPU).copy(tensor).is_same(tensor));
  EXPECT_TRUE(CopyToHost(tensor).wait().is_same(tensor));
}

using CudaCopies = CudaRanks;

TEST_F(CudaCopies, ArriveBeforeWhatTheCurrentStreamIsGivenNext) {
  run(1, [](const Group& group) {
    CopiesToDevice copies(gpu_of(*group));
    at::Tensor sum = at::zeros({4}, gpu_of(*group));
    for (int i = 0; i < 10; ++i) {
      at::Tensor batch = at::full({4}, i + 1.0F);
      const at::Tensor there = copies.copy(batch);
      batch.fill_(-1);
      EXPECT_EQ(there.device(), gpu_of(*group));
      sum.add_(there);
    }
    EXPECT_TRUE(sum.cpu().equal(at::full({4}, 55.0F)));
  });
}

TEST_F(CudaCopies, BringToTheHostWhatWasThereWhenTheyBegan) {
  run(1, [](const Group& group) {
    at::Tensor number = at::full({1}, 1.0F, gpu_of(*group));
    const CopyToHost one(number);
    number.add_(1);
    const CopyToHost two(number);
    EXPECT_EQ(two.wait().item<float>(), 2);
    EXPECT_EQ(one.wait().item<float>(), 1);
    EXPECT_TRUE(one.wait().is_cpu());
  });
}

}  // namespace
}  // namespace lockstep
