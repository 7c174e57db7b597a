#include "src/torch/testing/cuda_ranks.h"

#include <ATen/Context.h>
#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <exception>
#include <memory>
#include <numeric>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/init.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/gpu_plugin.h"

namespace lockstep {
namespace {

int real_devices() {
  static const int count = Gpu::count(load_gpu_table({}));
  return count;
}

// The time that ranks wait for each other after a test.
constexpr std::chrono::seconds kEndOfTest{15};

std::vector<int> members_of(const ProcessGroup& world, int ranks) {
  if (ranks == 1) return {world.rank()};
  std::vector<int> members(static_cast<std::size_t>(ranks));
  std::iota(members.begin(), members.end(), 0);
  return members;
}

// The exception of `body`. A rank that has given up aborts its group, in which
// the others would wait for it.
std::exception_ptr run_member(ProcessGroup& world, int ranks,
                              const RankBody& body) {
  std::shared_ptr<ProcessGroup> group;
  std::exception_ptr error;
  try {
    group = new_group(world, members_of(world, ranks));
    const c10::DeviceGuard guard(gpu_of(*group));
    body(group);
  } catch (...) {
    error = std::current_exception();
  }
  if (group && (error || ::testing::Test::HasFatalFailure()))
    group->abort("the test has failed on this rank");
  return error;
}

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

// The number of the calling rank's next operation.
std::uint64_t next_operation(const ProcessGroup& world) {
  const auto past = world.core().world()->recorder()->snapshot("").operations;
  return past.empty() ? 0 : past.back().number + 1;
}

// The ranks of this process's world: made by the first test, left at the end.
ProcessGroup& world_of_processes() {
  static const auto world = init_process_group();
  return *world;
}

}  // namespace

at::Device gpu_of(const ProcessGroup& group) {
  const int rank =
      FakeCuda::possible() ? group.rank() : group.rank() % real_devices();
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
  if (!is_fake()) return run_on_real_devices(ranks, body);
  run_gpu_ranks(gpu_.table(), ranks,
                [&](const std::shared_ptr<ProcessGroup>& group) {
                  const c10::DeviceGuard guard(gpu_of(*group));
                  body(group);
                });
  gpu_.hear_from_all_threads();
}

void CudaRanks::run_process(int gpus, const RankBody& body) {
  if (!is_fake() && gpus > real_devices())
    GTEST_SKIP() << "for " << gpus << " GPUs, of which there are "
                 << real_devices();
  run(1, body);
}

void CudaRanks::run_on_real_devices(int ranks, const RankBody& body) {
  ProcessGroup& world = world_of_processes();
  if (ranks > world.size())
    GTEST_SKIP() << "for " << ranks << " ranks, of which there are "
                 << world.size();
  first_operation_ = next_operation(world);
  const bool is_member = ranks == 1 || world.rank() < ranks;
  const std::exception_ptr error =
      is_member ? run_member(world, ranks, body) : nullptr;
  // No rank begins the next run() while another is in this one. All go on
  // alike: a rank that alone leaves the test would miss the others' next run().
  std::vector<std::int32_t> threw{error || !is_member ? 1 : 0};
  world
      .all_reduce(view(threw), ReduceOp::kMin,
                  {.timeout = kEndOfTest, .label = "the end of a test"})
      .wait();
  if (threw[0] == 1 && error) std::rethrow_exception(error);
  if (threw[0] == 1) throw Error("the ranks of this run threw an exception");
  if (error)
    ADD_FAILURE() << "rank " << world.rank() << " threw: " << text_of(error);
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
