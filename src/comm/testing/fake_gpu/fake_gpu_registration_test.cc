// Tests memory that is registered with communicators of fake GPUs, and its
// violations.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kCount = 8;
constexpr std::size_t kBytes = kCount * sizeof(float);

// Two ranks, each with a registered block.
class FakeGpuRegistration : public testing::Test {
 protected:
  void SetUp() override {
    gpus_.make_comms();
    for (const int rank : {0, 1}) {
      allocate(rank);
      EXPECT_EQ(register_block(rank), kGpuDone);
    }
  }

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  float* block(int rank) const {
    return static_cast<float*>(blocks_.at(at(rank)));
  }
  void allocate(int rank) {
    EXPECT_EQ(gpus_.table.use_device(rank, nullptr, &gpus_.outcome), kGpuDone);
    EXPECT_EQ(
        gpus_.table.allocate(&blocks_.at(at(rank)), kBytes, &gpus_.outcome),
        kGpuDone);
  }
  LockstepGpuResult register_block(int rank) {
    return gpus_.table.register_memory(gpus_.comm(rank), block(rank), kBytes,
                                       &handles_.at(at(rank)), &gpus_.outcome);
  }
  void unregister(int rank) {
    gpus_.table.unregister_memory(gpus_.comm(rank), handles_.at(at(rank)));
  }
  LockstepGpuResult sum(int rank) {
    return gpus_.call(
        rank, float_call(kGpuAllReduce, block(rank), block(rank), kCount));
  }
  auto violations() const { return gpus_.fake.violations(); }

  FakeGpuRanks gpus_{2};
  std::array<void*, 2> blocks_{};
  std::array<void*, 2> handles_{};
};

TEST_F(FakeGpuRegistration, IsEndedBeforeTheMemoryIsReleased) {
  for (const int rank : {0, 1}) EXPECT_EQ(sum(rank), kGpuDone);
  for (const int rank : {0, 1}) EXPECT_TRUE(gpus_.finishes(rank));
  for (const int rank : {0, 1}) {
    unregister(rank);
    gpus_.table.release(block(rank));
  }
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(gpus_.fake.alive().registrations, 0u);
  EXPECT_EQ(gpus_.fake.alive().allocations, 0u);
}

TEST_F(FakeGpuRegistration, IsReportedWhenItIsLeftToMemoryThatIsReleased) {
  gpus_.table.release(block(0));
  EXPECT_THAT(violations(), Contains(HasSubstr("still registered")));
  // The end of the communicator on all ranks would work too.
  for (const int rank : {0, 1}) gpus_.abort(rank);
  gpus_.table.release(block(1));
  EXPECT_EQ(violations().size(), 1u);
}

TEST_F(FakeGpuRegistration, IsReportedWhenItEndsWhileACallIsUnderWay) {
  EXPECT_EQ(sum(0), kGpuDone);
  unregister(0);
  EXPECT_EQ(violations().size(), 1u);
  EXPECT_THAT(violations(), Contains(HasSubstr("is still to use")));
}

TEST_F(FakeGpuRegistration, IsReportedWhenNobodySawThatTheCallIsOver) {
  for (const int rank : {0, 1}) EXPECT_EQ(sum(rank), kGpuDone);
  EXPECT_TRUE(gpus_.fake.carry_out_all());
  unregister(0);
  EXPECT_EQ(violations().size(), 1u);
  EXPECT_THAT(violations(), Contains(HasSubstr("nothing orders the two")));
  EXPECT_TRUE(gpus_.finishes(1));
  unregister(1);
  EXPECT_EQ(violations().size(), 1u);
}

TEST_F(FakeGpuRegistration, ThatIsOfOtherMemoryMayEndMeanwhile) {
  allocate(0);
  EXPECT_EQ(sum(0), kGpuDone);  // on the new block, not the first
  unregister(0);
  EXPECT_THAT(violations(), IsEmpty());
}

TEST_F(FakeGpuRegistration, IsReportedWhenItIsMadeTwice) {
  EXPECT_EQ(register_block(0), kGpuDone);
  EXPECT_EQ(violations().size(), 1u);
  EXPECT_THAT(violations(), Contains(HasSubstr("a second time")));
}

TEST_F(FakeGpuRegistration, IsReportedWhenItEndsTwice) {
  unregister(0);
  EXPECT_THAT(violations(), IsEmpty());
  unregister(0);
  EXPECT_THAT(violations(), Contains(HasSubstr("not registered")));
}

TEST_F(FakeGpuRegistration, IsReportedWhenItIsOfAnotherDevicesMemory) {
  void* handle = nullptr;
  EXPECT_EQ(gpus_.table.register_memory(gpus_.comm(0), block(1), kBytes,
                                        &handle, &gpus_.outcome),
            kGpuDone);
  EXPECT_THAT(violations(), Contains(HasSubstr("memory of device 1")));
}

TEST_F(FakeGpuRegistration, IsRefusedBeforeTheCommunicatorIsMade) {
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus_.table.unique_id(id.data(), &gpus_.outcome), kGpuDone);
  gpus_.abort(0);
  EXPECT_EQ(gpus_.create_comm(0, 2, id.data()), kGpuNotYet);
  EXPECT_EQ(register_block(0), kGpuMisuse);
  EXPECT_EQ(handles_[0], nullptr);
}

TEST_F(FakeGpuRegistration, DoesNotHideUsesOfMemoryThatWasReleased) {
  float* const gone = block(0);
  unregister(0);
  gpus_.table.release(gone);
  EXPECT_THAT(violations(), IsEmpty());
  EXPECT_EQ(gpus_.call(0, float_call(kGpuAllReduce, gone, gone, kCount)),
            kGpuDone);
  EXPECT_THAT(violations(), Contains(HasSubstr("that was released")));
  const std::size_t before = violations().size();
  gpus_.fake.host_reads(gone, sizeof(float));
  EXPECT_GT(violations().size(), before);
}

}  // namespace
}  // namespace lockstep
