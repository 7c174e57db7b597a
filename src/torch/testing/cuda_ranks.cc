#include "src/torch/testing/cuda_ranks.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <memory>

#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu_plugin.h"

namespace lockstep {
namespace {

// The number of the calling rank's next operation.
std::uint64_t next_operation(const ProcessGroup& world) {
  const auto past = world.core().world()->recorder()->snapshot("").operations;
  return past.empty() ? 0 : past.back().number + 1;
}

}  // namespace

at::Device gpu_of(const ProcessGroup& group) {
  const int rank =
      FakeCuda::possible() ? group.rank() : group.rank() % real_gpus();
  return {at::kCUDA, static_cast<at::DeviceIndex>(rank)};
}

std::vector<at::Tensor> on_cpu(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(tensor.defined() ? tensor.cpu() : tensor);
  return copies;
}

void CudaRanks::SetUp() {
  // GPUs' TF32 results differ from the CPU's by more than tests allow.
  at::globalContext().setFloat32MatmulPrecision("highest");
  at::globalContext().setAllowTF32CuDNN(false);
  if (FakeCuda::possible())
    cuda_.emplace(gpu_);
  else if (gpu_status({}).devices == 0)
    GTEST_SKIP() << "LibTorch has a CUDA of its own, which finds no GPU: "
                 << gpu_status({}).detail;
}

void CudaRanks::TearDown() {
  if (!cuda_) return;
  EXPECT_TRUE(cuda_->all_given_back());
  gpu_.carry_out_all();
  EXPECT_THAT(gpu_.violations(), ::testing::IsEmpty());
}

void CudaRanks::run(int ranks, const RankBody& body) {
  const RankBody on_device = [&](const std::shared_ptr<ProcessGroup>& group) {
    const c10::DeviceGuard guard(gpu_of(*group));
    body(group);
  };
  if (is_fake()) {
    run_gpu_ranks(gpu_.table(), ranks, on_device);
    gpu_.hear_from_all_threads();
    return;
  }
  first_operation_ = next_operation(world_of_processes());
  run_on_real_gpus(ranks, on_device);
}

void CudaRanks::run_process(int gpus, const RankBody& body) {
  if (!is_fake() && gpus > real_gpus())
    GTEST_SKIP() << "for " << gpus << " GPUs, of which there are "
                 << real_gpus();
  run(1, body);
}

std::vector<OperationRecord> CudaRanks::operations(
    const ProcessGroup& group) const {
  auto all = group.core().world()->recorder()->snapshot("").operations;
  std::erase_if(all, [&](const OperationRecord& one) {
    return one.number < first_operation_;
  });
  return all;
}

}  // namespace lockstep
