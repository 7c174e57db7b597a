// Tests the plug-in itself, as far as possible without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/wire/transport_plugin.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class NcclPlugin : public testing::Test {
 protected:
  const LockstepGpuTable& table_ = load_gpu_table({});
  LockstepGpuOutcome outcome_{};
};

class NcclPluginWithoutDriver : public NcclPlugin {
 protected:
  void SetUp() override {
    std::int32_t count = 0;
    if (table_.device_count(&count, &outcome_) == kGpuDone)
      GTEST_SKIP() << "there are " << count << " GPUs";
  }
};

TEST_F(NcclPlugin, IsFoundAndSaysWhatIsInIt) {
  EXPECT_EQ(table_.version, kGpuTableVersion);
  EXPECT_THAT(table_.libraries,
              testing::MatchesRegex("CUDA [0-9.]+, NCCL 2[.][0-9.]+"));
  EXPECT_EQ(plugin_folder(), LOCKSTEP_TEST_PLUGINS);
}

TEST_F(NcclPlugin, FillsTheWholeTable) {
  const auto* members = reinterpret_cast<void* const*>(&table_.device_count);
  const auto* end = reinterpret_cast<void* const*>(&table_ + 1);
  for (; members != end; ++members) EXPECT_NE(*members, nullptr);
}

TEST_F(NcclPluginWithoutDriver, SaysWhatToDo) {
  std::int32_t count = -1;
  EXPECT_EQ(table_.device_count(&count, &outcome_), kGpuNoDriver);
  EXPECT_EQ(count, 0);
  EXPECT_THAT(outcome_.text,
              AllOf(HasSubstr("NVIDIA driver"), HasSubstr("cudaGetDeviceCount"),
                    HasSubstr("\n  next:    ")));
  const GpuStatus status = gpu_status({});
  EXPECT_TRUE(status.plugin);
  EXPECT_EQ(status.devices, 0);
  EXPECT_THAT(status.detail,
              AllOf(HasSubstr("NVIDIA driver"), HasSubstr(table_.libraries),
                    HasSubstr("liblockstep_nccl.so")));
  EXPECT_NE(status.next, "");
}

TEST_F(NcclPluginWithoutDriver, IsRefusedEverything) {
  LockstepGpuStream* stream = nullptr;
  LockstepGpuEvent* event = nullptr;
  void* memory = nullptr;
  EXPECT_EQ(table_.use_device(0, nullptr, &outcome_), kGpuNoDriver);
  EXPECT_EQ(table_.stream_create(&stream, &outcome_), kGpuNoDriver);
  EXPECT_EQ(table_.event_create(&event, &outcome_), kGpuNoDriver);
  EXPECT_EQ(table_.allocate(&memory, 64, &outcome_), kGpuNoDriver);
  EXPECT_EQ(memory, nullptr);
}

TEST_F(NcclPluginWithoutDriver, MakesNoCommunicator) {
  std::array<char, kGpuUniqueIdBytes> id{};
  const LockstepGpuCommConfig config{
      .rank = 0, .size = 1, .id = id.data(), .name = "default"};
  LockstepGpuComm* comm = nullptr;
  EXPECT_NE(table_.comm_create(&config, &comm, &outcome_), kGpuDone);
  EXPECT_EQ(comm, nullptr);
  EXPECT_THAT(outcome_.text, HasSubstr("ncclCommInitRankConfig"));
}

}  // namespace
}  // namespace lockstep
