// Ranks that have a GPU each: threads with a FakeGpu's, or processes with real
// ones.
//
// GpuRanks is the fixture for both. It uses the fake, unless the environment
// has LOCKSTEP_TEST_GPUS=real: then ranks are the processes of
//
//     lockstep run -n 2 -- lockstep_comm_test --gtest_filter='Nccl*'
//
// all of which run the same tests over the plug-in. A run() of one rank takes
// place in each process, so that each knows its results. An exception leaves
// run() if all ranks throw it; of some ranks it fails the test. Tests that need
// more ranks than exist, and tests of the fake itself, are skipped. With more
// ranks than GPUs some ranks share a GPU, which NCCL refuses within one host:
// LOCKSTEP_SHARE_GPUS=1 lets each rank claim a host of its own.
//
// Threads: those of run_ranks().
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/gpu_table.h"
#include "src/comm/testing/device_block.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {

// Like run_ranks("hybrid", …) with all ranks on one host, where `table` handles
// buffers on a GPU. Rank r has device r.
void run_gpu_ranks(const LockstepGpuTable& table, int ranks,
                   const RankBody& body);

// Whether LOCKSTEP_TEST_GPUS asks for real GPUs.
bool tests_use_real_gpus();

// The number of GPUs that the plug-in finds.
int real_gpus();

// The ranks of this process's world: made by the first test, left at the end.
ProcessGroup& world_of_processes();

// Runs `body` on the first `ranks` processes of the world, in a new group, so
// that an earlier test has no effect on it. No process begins the next run
// before all have ended this one. Skips the test if there are fewer processes.
// Rank r has device r modulo real_gpus().
void run_on_real_gpus(int ranks, const RankBody& body);

// A new group on the CPU of the same ranks, where they meet whatever becomes of
// `group`, for at most a minute at a time. All ranks call this together.
std::shared_ptr<ProcessGroup> group_beside(ProcessGroup& group);

class GpuRanks : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  void run(int ranks, const RankBody& body);

  static bool is_fake() { return !tests_use_real_gpus(); }
  const LockstepGpuTable& table() const;
  // The device of a rank.
  Gpu gpu_of(int rank) const;
  Gpu gpu_of(const std::shared_ptr<ProcessGroup>& group) const;

  // The elements of memory that the host has waited for: otherwise the access
  // is one of the fake's violations.
  std::vector<float> read(const DeviceBlock& block);
  void write(const DeviceBlock& block, const std::vector<float>& elements);

  // Unused, and so without violations and objects, where GPUs are real.
  FakeGpu fake_{
      {.devices = 4, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

}  // namespace lockstep
