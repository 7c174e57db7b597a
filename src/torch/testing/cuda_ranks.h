// Tests on devices "cuda", one per rank: a FakeCuda's, or real ones where
// LibTorch has CUDA.
//
// With the fake, ranks are threads, and a test also fails when something on the
// devices went well only by chance: see src/comm/testing/fake_gpu/fake_gpu.h.
// On real devices ranks are the processes of
//
//     lockstep run -n 4 lockstep_torch_test --gtest_filter='*Cuda*'
//
// as src/comm/testing/gpu_ranks.h describes. Tests that need more GPUs than
// exist are skipped too.
//
// Threads: like run_ranks().
#pragma once

#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "src/comm/diagnosis/record.h"
#include "src/comm/testing/gpu_ranks.h"
#include "src/torch/testing/fake_cuda.h"

namespace lockstep {

// The device of the calling rank.
at::Device gpu_of(const ProcessGroup& group);

std::vector<at::Tensor> on_cpu(const std::vector<at::Tensor>& tensors);

class CudaRanks : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  // Each rank's device is current.
  void run(int ranks, const RankBody& body);
  // One rank, of a process with at least `gpus` devices, from index 0 on.
  void run_process(int gpus, const RankBody& body);

  bool is_fake() const { return cuda_.has_value(); }

  // What the calling rank has recorded in this run(): the process of a rank on
  // a real device keeps its world, and so its record, for all tests.
  std::vector<OperationRecord> operations(const ProcessGroup& group) const;

  FakeGpu gpu_{
      {.devices = 4, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
  std::optional<FakeCuda> cuda_;

 private:
  std::uint64_t first_operation_ = 0;  // of this run(), by its number
};

}  // namespace lockstep
