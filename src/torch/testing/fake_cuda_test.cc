#include "src/torch/testing/fake_cuda.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <optional>

namespace lockstep {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

const at::Device kDevice(at::kCUDA, 1);

class FakeCudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "LibTorch has a CUDA of its own";
    cuda_.emplace(gpu_);
  }
  void TearDown() override {
    if (cuda_) {
      EXPECT_TRUE(cuda_->all_given_back());
    }
  }
  // The violations, after all tensors are freed and all work is done.
  std::vector<std::string> violations() {
    gpu_.carry_out_all();
    return gpu_.violations();
  }
  static c10::impl::VirtualGuardImpl guard() {
    return c10::impl::VirtualGuardImpl(at::kCUDA);
  }

  FakeGpu gpu_;
  std::optional<FakeCuda> cuda_;
};

TEST_F(FakeCudaTest, ComputesWhatTheCpuComputes) {
  torch::nn::Linear layer(5, 3);
  const at::Tensor input = torch::randn({4, 5});
  const at::Tensor expected = layer(input);
  expected.sum().backward();
  const at::Tensor gradient = layer->weight.grad().clone();
  layer->zero_grad();
  layer->to(kDevice);
  const at::Tensor output = layer(input.to(kDevice));
  EXPECT_EQ(output.device(), kDevice);
  output.sum().backward();
  EXPECT_TRUE(output.cpu().allclose(expected));
  EXPECT_TRUE(layer->weight.grad().cpu().allclose(gradient));
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(FakeCudaTest, KeepsViewsInTheMemoryOfTheirTensor) {
  const at::Tensor matrix = at::zeros({3, 4}, kDevice);
  matrix.t().select(0, 1).fill_(7);
  matrix.view({12}).narrow(0, 0, 1).add_(1);
  EXPECT_EQ(matrix.sum().item<float>(), 22);
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(FakeCudaTest, GivesAStreamAgainWhenAllOfItsPoolAreGiven) {
  std::vector<c10::Stream> streams;
  for (int i = 0; i < 33; ++i)
    streams.push_back(guard().getNewStream(kDevice, 0));
  EXPECT_EQ(streams[32], streams[0]);
  for (int i = 1; i < 32; ++i)
    EXPECT_NE(streams[static_cast<std::size_t>(i)], streams[0]);
}

TEST_F(FakeCudaTest, FindsAUseThatNoEventOrders) {
  const c10::Stream other = guard().getNewStream(kDevice, 0);
  at::Tensor tensor;
  {
    const c10::StreamGuard current(other);
    tensor = at::ones({3}, kDevice);
  }
  tensor.add_(1);
  EXPECT_THAT(violations(), Not(IsEmpty()));
}

TEST_F(FakeCudaTest, IsContentWhereAnEventOrdersIt) {
  const c10::Stream other = guard().getNewStream(kDevice, 0);
  at::Tensor tensor;
  {
    const c10::StreamGuard current(other);
    tensor = at::ones({3}, kDevice);
  }
  c10::Event made(at::kCUDA), used(at::kCUDA);
  made.record(other);
  made.block(guard().getDefaultStream(kDevice));
  tensor.add_(1);
  used.record(guard().getDefaultStream(kDevice));
  used.block(other);  // the stream to which the memory returns
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(FakeCudaTest, FindsMemoryThatIsGivenBackWhileAnotherStreamUsesIt) {
  const c10::Stream other = guard().getNewStream(kDevice, 0);
  for (const bool recorded : {true, false}) {
    at::Tensor tensor = at::ones({3}, kDevice);
    c10::Event made(at::kCUDA);
    made.record(guard().getDefaultStream(kDevice));
    made.block(other);
    {
      const c10::StreamGuard current(other);
      tensor.add_(1);
      if (recorded) tensor.record_stream(other);
    }
    tensor.reset();
    EXPECT_EQ(violations().empty(), recorded);
  }
}

TEST_F(FakeCudaTest, CountsWhatIsAllocatedOnADevice) {
  {
    const at::Tensor tensor = at::empty({3}, kDevice);
    EXPECT_EQ(cuda_->blocks(), 1);
  }
  EXPECT_EQ(cuda_->blocks(), 0);
  EXPECT_EQ(cuda_->allocated_on(0), 0);
  EXPECT_EQ(cuda_->allocated_on(1), 1);
}

}  // namespace
}  // namespace lockstep
