// Tests of ranks as threads, each with a device "cuda" of its own: a
// FakeCuda's.
//
// A test fails, whatever else it says, when something on the devices went well
// only by chance: see comm/testing/fake_gpu.h.
//
// Threads: as run_ranks().
#pragma once

#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "lockstep/comm/testing/gpu_ranks.h"
#include "lockstep/torch/testing/fake_cuda.h"

namespace lockstep {

inline at::Device gpu_of(const ProcessGroup& group) {
  return {at::kCUDA, static_cast<at::DeviceIndex>(group.rank())};
}

inline std::vector<at::Tensor> on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(tensor.defined() ? tensor.cpu() : tensor);
  return copies;
}

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!FakeCuda::possible()) GTEST_SKIP() << "LibTorch has a CUDA of its own";
    cuda_.emplace(gpu_);
  }
  void TearDown() override {
    if (!cuda_) return;
    EXPECT_TRUE(cuda_->all_given_back());
    gpu_.carry_out_all();
    EXPECT_THAT(gpu_.violations(), ::testing::IsEmpty());
  }

  // Rank r's is device r, which is current.
  void run(int ranks, const RankBody& body) {
    run_gpu_ranks(gpu_.table(), ranks,
                  [&](const std::shared_ptr<ProcessGroup>& group) {
                    const c10::DeviceGuard guard(gpu_of(*group));
                    body(group);
                  });
    gpu_.hear_from_all_threads();
  }

  FakeGpu gpu_{
      {.devices = 4, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
  std::optional<FakeCuda> cuda_;
};

}  // namespace lockstep
