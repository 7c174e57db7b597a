// Tests how communicators of fake GPUs are made, and how they end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Floats = std::vector<float>;

TEST(FakeGpuComm, IsReadyOnlyWhenAllRanksHaveComeAndItSaysSo) {
  FakeGpuRanks gpus(2);
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus.table.unique_id(id.data(), &gpus.outcome), kGpuDone);
  EXPECT_EQ(gpus.create_comm(0, 2, id.data()), kGpuNotYet);
  EXPECT_EQ(gpus.settle(gpus.comm(0)), kGpuNotYet);
  EXPECT_EQ(gpus.create_comm(1, 2, id.data()), kGpuNotYet);
  Floats memory(1);
  EXPECT_EQ(gpus.call(1, float_sum(memory)), kGpuMisuse);
  for (const int rank : {0, 1})
    EXPECT_EQ(gpus.settle(gpus.comm(rank)), kGpuDone);
  EXPECT_EQ(gpus.call(1, float_sum(memory)), kGpuDone);
  EXPECT_EQ(gpus.create_comm(1, 2, id.data()), kGpuMisuse);  // a second time
}

TEST(FakeGpuComm, IsNeverReadyWhenARankHasLeftBefore) {
  FakeGpuRanks gpus(2);
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus.table.unique_id(id.data(), &gpus.outcome), kGpuDone);
  EXPECT_EQ(gpus.create_comm(0, 2, id.data()), kGpuNotYet);
  gpus.abort(0);
  EXPECT_EQ(gpus.create_comm(1, 2, id.data()), kGpuNotYet);
  EXPECT_EQ(gpus.settle(gpus.comm(1)), kGpuNotYet);
  gpus.abort(1);
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

// The result of two ranks, the first on device 0 of "a host".
LockstepGpuResult meet(FakeGpuRanks& gpus, const std::string& host_of_second,
                       int device_of_second) {
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus.table.unique_id(id.data(), &gpus.outcome), kGpuDone);
  std::array<LockstepGpuComm*, 2> comms{};
  for (const int rank : {0, 1}) {
    gpus.fake.set_host(rank == 0 ? "a host" : host_of_second);
    EXPECT_EQ(gpus.table.use_device(rank == 0 ? 0 : device_of_second, nullptr,
                                    &gpus.outcome),
              kGpuDone);
    const LockstepGpuCommConfig config{
        .rank = rank, .size = 2, .id = id.data(), .name = "test"};
    EXPECT_EQ(
        gpus.table.comm_create(
            &config, &comms.at(static_cast<std::size_t>(rank)), &gpus.outcome),
        kGpuNotYet);
  }
  return gpus.settle(comms[0]);
}

TEST(FakeGpuComm, RefusesTwoRanksOfOneHostWithOneBusId) {
  FakeGpuRanks gpus(2);
  EXPECT_EQ(meet(gpus, "a host", 1), kGpuDone);
  EXPECT_EQ(meet(gpus, "a host", 0), kGpuMisuse);
  EXPECT_THAT(gpus.outcome.text, HasSubstr("Duplicate GPU"));
  EXPECT_EQ(meet(gpus, "another", 0), kGpuDone);
  gpus.fake.share_bus(1, 0);
  EXPECT_EQ(meet(gpus, "a host", 1), kGpuMisuse);
  EXPECT_EQ(meet(gpus, "another", 1), kGpuDone);
}

TEST(FakeGpuComm, IsLateWithCallsOfSeveralRanksAndNeverWithOneRanks) {
  for (const int ranks : {1, 2}) {
    FakeGpuRanks gpus(ranks);
    gpus.make_comms();
    Floats memory(1);
    const LockstepGpuCall call = float_sum(memory);
    for (int round = 0; round < 10; ++round) {
      EXPECT_EQ(gpus.table.use_device(0, nullptr, nullptr), kGpuDone);
      EXPECT_EQ(gpus.table.call(gpus.comm(0), &call, gpus.stream(0), nullptr),
                ranks == 1 ? kGpuDone : kGpuNotYet);
      gpus.settle(gpus.comm(0));
    }
  }
}

TEST(FakeGpuComm, ReportsItsDestructionWhileSomethingIsUnderWay) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  EXPECT_EQ(gpus.call(0, float_sum(memory)), kGpuDone);
  gpus.destroy(0);
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
  gpus.finalize(1);
  gpus.destroy(1);
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpuComm, ReportsItsDestructionBeforeAllRanksHaveFinalizedIt) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  gpus.finalize(0);
  Floats memory(1);
  EXPECT_EQ(gpus.call(0, float_sum(memory)), kGpuMisuse);
  gpus.destroy(0);
  EXPECT_THAT(gpus.fake.violations(),
              ElementsAre(HasSubstr("before rank 1 has finalized it")));
  gpus.destroy(1);
  EXPECT_THAT(gpus.fake.violations().back(),
              HasSubstr("before it is finalized"));
}

TEST(FakeGpuComm, ReportsItsEndByAThreadOfAnotherDevice) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::thread([&] { gpus.table.comm_abort(gpus.comm(1)); }).join();
  EXPECT_THAT(gpus.fake.violations(),
              ElementsAre(HasSubstr("a thread that uses device 0")));
  std::thread([&] { gpus.abort(0); }).join();
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpuComm, EndsInGoodOrder) {
  FakeGpuRanks gpus(3);
  gpus.make_comms();
  gpus.end_comms();
  EXPECT_EQ(gpus.fake.alive().comms, 0u);
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpuComm, ReportsItsDestructionBeforeItIsMade) {
  FakeGpuRanks gpus(2);
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus.table.unique_id(id.data(), &gpus.outcome), kGpuDone);
  EXPECT_EQ(gpus.create_comm(0, 2, id.data()), kGpuNotYet);
  gpus.destroy(0);
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpuComm, ForgetsItsRegistrationsWhenTheLastRankEndsIt) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  for (const int rank : {0, 1}) {
    void* handle = nullptr;
    EXPECT_EQ(gpus.table.register_memory(gpus.comm(rank), memory.data(), 4,
                                         &handle, &gpus.outcome),
              kGpuDone);
  }
  gpus.abort(0);
  EXPECT_EQ(gpus.fake.alive().registrations, 2u);
  gpus.abort(1);
  EXPECT_EQ(gpus.fake.alive().registrations, 0u);
}

TEST(FakeGpuComm, MayStillUseMemoryWhenARankButTheLastHasAborted) {
  for (const bool waits : {false, true}) {
    FakeGpuRanks gpus(2);
    gpus.make_comms();
    Floats memory(1);
    EXPECT_EQ(gpus.call(0, float_sum(memory)), kGpuDone);
    gpus.abort(0);
    if (waits) {
      EXPECT_TRUE(gpus.finishes(0));
    }
    gpus.fake.host_writes(memory.data(), sizeof(float));
    EXPECT_EQ(gpus.fake.violations().empty(), waits);
    gpus.abort(1);
  }
}

TEST(FakeGpuComm, UsesNoMemoryWhenTheLastRankHasAborted) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  EXPECT_EQ(gpus.call(0, float_sum(memory)), kGpuDone);
  gpus.abort(1);
  gpus.abort(0);
  gpus.fake.host_writes(memory.data(), sizeof(float));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpuComm, GetsNoFurtherOnceItHasFailed) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::vector<Floats> memory(2, Floats(1));
  gpus.fake.fail_comms_of(1, kGpuPeerLost, "the cable is cut");
  EXPECT_EQ(gpus.call(0, float_sum(memory[0])), kGpuDone);
  EXPECT_FALSE(gpus.finishes(0));
  EXPECT_EQ(gpus.settle(gpus.comm(0)), kGpuDone);
  EXPECT_EQ(gpus.settle(gpus.comm(1)), kGpuPeerLost);
  EXPECT_STREQ(gpus.outcome.text, "the cable is cut");
  EXPECT_EQ(gpus.call(1, float_sum(memory[1])), kGpuPeerLost);
  gpus.fake.fail_comm(gpus.comm(0), kGpuFailed, "so is this");
  for (int i = 0; i < 10; ++i) gpus.settle(gpus.comm(0));
  EXPECT_EQ(gpus.settle(gpus.comm(0)), kGpuFailed);
}

// A rank that is a thread: repeats all_reduces. All ranks end when they have
// arrived at `ending`.
void add_up(FakeGpu& fake, int rank, const char* id, std::latch& ending) {
  constexpr int size = 3;
  const LockstepGpuTable& table = fake.table();
  ASSERT_EQ(table.use_device(rank, nullptr, nullptr), kGpuDone);
  LockstepGpuStream* stream = nullptr;
  LockstepGpuEvent* event = nullptr;
  LockstepGpuComm* comm = nullptr;
  ASSERT_EQ(table.stream_create(&stream, nullptr), kGpuDone);
  ASSERT_EQ(table.event_create(&event, nullptr), kGpuDone);
  const LockstepGpuCommConfig config{
      .rank = rank, .size = size, .id = id, .name = "test"};
  ASSERT_EQ(table.comm_create(&config, &comm, nullptr), kGpuNotYet);
  const auto settle = [&] {
    while (table.comm_state(comm, nullptr) == kGpuNotYet)
      std::this_thread::yield();
  };
  settle();
  Floats memory(1);
  for (int round = 0; round < 50; ++round) {
    fake.host_writes(memory.data(), sizeof(float));
    memory[0] = static_cast<float>(rank + round);
    const LockstepGpuCall call = float_sum(memory);
    if (table.call(comm, &call, stream, nullptr) == kGpuNotYet) settle();
    ASSERT_EQ(table.event_record(event, stream, nullptr), kGpuDone);
    while (table.event_query(event, nullptr) == kGpuNotYet)
      std::this_thread::yield();
    fake.host_reads(memory.data(), sizeof(float));
    ASSERT_EQ(memory[0], static_cast<float>(3 + 3 * round));
  }
  fake.forget(memory.data(), sizeof(float));
  ASSERT_EQ(table.comm_finalize(comm, nullptr), kGpuNotYet);
  settle();
  ending.arrive_and_wait();
  table.comm_destroy(comm);
  table.event_destroy(event);
  table.stream_destroy(stream);
}

TEST(FakeGpuComm, ServesRanksThatAreThreads) {
  FakeGpu fake({.devices = 3});
  std::array<char, kGpuUniqueIdBytes> id{};
  ASSERT_EQ(fake.table().unique_id(id.data(), nullptr), kGpuDone);
  std::vector<std::thread> ranks;
  std::latch ending(3);
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] { add_up(fake, rank, id.data(), ending); });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_THAT(fake.violations(), IsEmpty());
  EXPECT_EQ(fake.alive(), FakeGpu::Alive{});
}

TEST(FakeGpuComm, WaitsForADeadDeviceForEver) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::vector<Floats> memory(2, Floats(1));
  for (const bool dead : {false, true}) {
    if (dead) gpus.fake.kill(1);
    EXPECT_EQ(gpus.call(0, float_sum(memory[0])), kGpuDone);
    EXPECT_EQ(gpus.call(1, float_sum(memory[1])), kGpuDone);
    EXPECT_EQ(gpus.finishes(0), !dead);
  }
  for (const int rank : {0, 1}) gpus.abort(rank);
  std::array<char, kGpuUniqueIdBytes> id{};
  EXPECT_EQ(gpus.table.unique_id(id.data(), &gpus.outcome), kGpuDone);
  for (const int rank : {0, 1})
    EXPECT_EQ(gpus.create_comm(rank, 2, id.data()), kGpuNotYet);
  EXPECT_EQ(gpus.settle(gpus.comm(0)), kGpuNotYet);
}

}  // namespace
}  // namespace lockstep
