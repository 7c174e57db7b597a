// Tests the plug-in on a GPU, with a single rank; skipped without a GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <numeric>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/net/wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;

using Floats = std::vector<float>;

constexpr std::size_t kCount = 1 << 16;
constexpr std::size_t kBytes = kCount * sizeof(float);

class NcclPluginOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::int32_t count = 0;
    if (table_.device_count(&count, &outcome_) != kGpuDone || count == 0)
      GTEST_SKIP() << "there is no GPU: " << outcome_.text;
    expect_done(table_.use_device(0, nullptr, &outcome_));
    expect_done(table_.stream_create(&stream_, &outcome_));
    expect_done(table_.event_create(&event_, &outcome_));
  }
  void TearDown() override {
    if (event_ != nullptr) table_.event_destroy(event_);
    if (stream_ != nullptr) table_.stream_destroy(stream_);
    for (void* memory : memory_) table_.release(memory);
  }

  void expect_done(LockstepGpuResult result) {
    ASSERT_EQ(result, kGpuDone) << outcome_.text;
  }
  void await(const std::function<LockstepGpuResult()>& asked) {
    const Deadline deadline(60s);
    Backoff backoff(1ms, 2ms);
    LockstepGpuResult result = asked();
    while (result == kGpuNotYet &&
           backoff.wait(deadline) != WaitResult::kTimedOut)
      result = asked();
    expect_done(result);
  }
  void synchronize() {
    expect_done(table_.event_record(event_, stream_, &outcome_));
    await([&] { return table_.event_query(event_, &outcome_); });
  }

  void* allocate() {
    void* memory = nullptr;
    EXPECT_EQ(table_.allocate(&memory, kBytes, &outcome_), kGpuDone)
        << outcome_.text;
    memory_.push_back(memory);
    return memory;
  }
  void* allocate(const Floats& elements) {
    void* const memory = allocate();
    expect_done(
        table_.copy(memory, elements.data(), kBytes, stream_, &outcome_));
    synchronize();
    return memory;
  }
  Floats read(const void* memory) {
    Floats elements(kCount, -1);
    expect_done(
        table_.copy(elements.data(), memory, kBytes, stream_, &outcome_));
    synchronize();
    return elements;
  }

  LockstepGpuComm* make_comm(int size) {
    std::array<char, kGpuUniqueIdBytes> id{};
    expect_done(table_.unique_id(id.data(), &outcome_));
    const LockstepGpuCommConfig config{
        .rank = 0, .size = size, .id = id.data(), .name = "default"};
    LockstepGpuComm* comm = nullptr;
    expect_done(table_.comm_create(&config, &comm, &outcome_));
    return comm;
  }
  LockstepGpuComm* make_ready_comm() {
    LockstepGpuComm* const comm = make_comm(1);
    await([&] { return table_.comm_state(comm, &outcome_); });
    return comm;
  }
  void end(LockstepGpuComm* comm) {
    const LockstepGpuResult ended = table_.comm_finalize(comm, &outcome_);
    ASSERT_TRUE(ended == kGpuDone || ended == kGpuNotYet) << outcome_.text;
    await([&] { return table_.comm_state(comm, &outcome_); });
    table_.comm_destroy(comm);
  }
  // Makes these calls as one operation, and waits until the device is done.
  void carry_out(LockstepGpuComm* comm,
                 const std::vector<LockstepGpuCall>& calls) {
    expect_done(table_.group_begin(&outcome_));
    for (const LockstepGpuCall& call : calls)
      expect_done(table_.call(comm, &call, stream_, &outcome_));
    const LockstepGpuResult ended = table_.group_end(&outcome_);
    ASSERT_TRUE(ended == kGpuDone || ended == kGpuNotYet) << outcome_.text;
    await([&] { return table_.comm_state(comm, &outcome_); });
    synchronize();
  }

  static Floats numbers() {
    Floats elements(kCount);
    std::iota(elements.begin(), elements.end(), 1.0F);
    return elements;
  }

  const LockstepGpuTable& table_ = load_gpu_table({});
  LockstepGpuOutcome outcome_{};
  LockstepGpuStream* stream_ = nullptr;
  LockstepGpuEvent* event_ = nullptr;
  std::vector<void*> memory_;
};

TEST_F(NcclPluginOnGpu, GivesMemoryOfZerosAndCopiesIt) {
  EXPECT_THAT(read(allocate()), Each(0.0F));
  EXPECT_EQ(read(allocate(numbers())), numbers());
}

TEST_F(NcclPluginOnGpu, NamesADeviceAndComesBackToIt) {
  std::array<char, 128> name{};
  expect_done(table_.device_name(0, name.data(), name.size(), &outcome_));
  EXPECT_THAT(name.data(), ::testing::MatchesRegex("GPU-[0-9a-f]{32}"));
  std::int32_t before = -2;
  expect_done(table_.use_device(0, &before, &outcome_));
  EXPECT_EQ(before, 0);
}

TEST_F(NcclPluginOnGpu, HoldsUpAStreamUntilAnEventOfAnother) {
  LockstepGpuStream* other = nullptr;
  expect_done(table_.stream_create(&other, &outcome_));
  void* const from = allocate(numbers());
  void* const between = allocate();
  void* const to = allocate();
  for (int i = 0; i < 100; ++i)
    expect_done(table_.copy(between, from, kBytes, stream_, &outcome_));
  expect_done(table_.event_record(event_, stream_, &outcome_));
  expect_done(table_.stream_wait(other, event_, &outcome_));
  expect_done(table_.copy(to, between, kBytes, other, &outcome_));
  expect_done(table_.event_record(event_, other, &outcome_));
  await([&] { return table_.event_query(event_, &outcome_); });
  EXPECT_EQ(read(to), numbers());
  table_.stream_destroy(other);
}

TEST_F(NcclPluginOnGpu, CarriesOutEveryCall) {
  LockstepGpuComm* const comm = make_ready_comm();
  for (const LockstepGpuKind kind : {kGpuAllReduce, kGpuReduce, kGpuAllGather,
                                     kGpuReduceScatter, kGpuBroadcast})
    for (const LockstepGpuSum sum :
         {kGpuSum, kGpuProduct, kGpuMin, kGpuMax, kGpuAverage}) {
      void* const from = allocate(numbers());
      void* const to = kind == kGpuBroadcast ? from : allocate();
      carry_out(comm, {{.kind = kind,
                        .sum = sum,
                        .type = 0,
                        .peer = 0,
                        .from = from,
                        .to = to,
                        .count = kCount}});
      EXPECT_EQ(read(to), numbers()) << kind << ", " << sum;
    }
  end(comm);
}

TEST_F(NcclPluginOnGpu, SendsToItself) {
  LockstepGpuComm* const comm = make_ready_comm();
  void* const from = allocate(numbers());
  void* const to = allocate();
  const LockstepGpuCall send{.kind = kGpuSend,
                             .sum = kGpuSum,
                             .type = 0,
                             .peer = 0,
                             .from = from,
                             .to = nullptr,
                             .count = kCount};
  const LockstepGpuCall receive{.kind = kGpuReceive,
                                .sum = kGpuSum,
                                .type = 0,
                                .peer = 0,
                                .from = nullptr,
                                .to = to,
                                .count = kCount};
  carry_out(comm, {send, receive});
  EXPECT_EQ(read(to), numbers());
  end(comm);
}

TEST_F(NcclPluginOnGpu, ReducesMemoryThatIsRegistered) {
  LockstepGpuComm* const comm = make_ready_comm();
  void* const memory = allocate(numbers());
  void* handle = nullptr;
  expect_done(table_.register_memory(comm, memory, kBytes, &handle, &outcome_));
  carry_out(comm, {{.kind = kGpuAllReduce,
                    .sum = kGpuSum,
                    .type = 0,
                    .peer = 0,
                    .from = memory,
                    .to = memory,
                    .count = kCount}});
  EXPECT_EQ(read(memory), numbers());
  table_.unregister_memory(comm, handle);
  end(comm);
}

TEST_F(NcclPluginOnGpu, GivesUpOnARankThatNeverComes) {
  LockstepGpuComm* const comm = make_comm(2);
  EXPECT_EQ(table_.comm_state(comm, &outcome_), kGpuNotYet) << outcome_.text;
  table_.comm_abort(comm);
  // The device still works.
  EXPECT_EQ(read(allocate(numbers())), numbers());
}

}  // namespace
}  // namespace lockstep
