// Uses a fake driver library: see testing/fake_nvml_library.cc.
#include "src/launch/worker/gpu_inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // setenv

namespace lockstep {
namespace {

using ::testing::IsEmpty;

TEST(GpuInventory, TellsWhatEachGpuIsAndDoes) {
  const GpuInventory inventory = look_at_gpus(LOCKSTEP_FAKE_NVML_LIBRARY);
  EXPECT_EQ(inventory.problem, "");
  EXPECT_EQ(inventory.driver, "580.95.05");
  ASSERT_EQ(inventory.gpus.size(), 2u);
  const GpuState& first = inventory.gpus[0];
  EXPECT_EQ(describe(first),
            "NVIDIA Imaginary 8 GB, 2.0 of 8.0 GiB used, 87 % busy, 54 °C, 2 "
            "processes");
  ASSERT_EQ(first.processes.size(), 2u);
  EXPECT_EQ(first.processes[0].pid, 4711u);
  EXPECT_EQ(first.processes[0].bytes, std::uint64_t{1} << 30);
  EXPECT_EQ(first.processes[1].bytes, std::nullopt);
}

TEST(GpuInventory, LeavesOutWhatADriverDoesNotSay) {
  const GpuInventory inventory = look_at_gpus(LOCKSTEP_FAKE_NVML_LIBRARY);
  ASSERT_EQ(inventory.gpus.size(), 2u);
  EXPECT_EQ(inventory.gpus[1].index, 1);
  EXPECT_EQ(describe(inventory.gpus[1]),
            "NVIDIA Imaginary 8 GB, 2.0 of 8.0 GiB used");
}

TEST(GpuInventory, SaysWhyThereIsNothing) {
  const GpuInventory none = look_at_gpus("liblockstep_no_such_library.so");
  EXPECT_THAT(none.gpus, IsEmpty());
  EXPECT_EQ(none.problem, "there is no NVIDIA driver");
  ::setenv("LOCKSTEP_FAKE_NVML", "broken", 1);
  const GpuInventory broken = look_at_gpus(LOCKSTEP_FAKE_NVML_LIBRARY);
  ::unsetenv("LOCKSTEP_FAKE_NVML");
  EXPECT_THAT(broken.gpus, IsEmpty());
  EXPECT_EQ(broken.problem, "Driver Not Loaded");
}

TEST(VisibleGpus, AreCountedAsCudaReadsTheVariable) {
  EXPECT_EQ(count_visible(4, std::nullopt), 4);
  EXPECT_EQ(count_visible(4, ""), 0);
  EXPECT_EQ(count_visible(4, "0,2"), 2);
  EXPECT_EQ(count_visible(4, "3"), 1);
  EXPECT_EQ(count_visible(4, "0,7,1"), 1);  // up to the first invalid entry
  EXPECT_EQ(count_visible(4, "-1"), 0);
  EXPECT_EQ(count_visible(4, "1,1"), 0);
  EXPECT_EQ(count_visible(4, "GPU-8932f937,MIG-1f2e"), 2);
}

}  // namespace
}  // namespace lockstep
