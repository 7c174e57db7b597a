// Tests the calls of fake GPUs' communicators.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/base/buffer.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

using Floats = std::vector<float>;

// Calls `call` on every rank with its own memory; returns whether all end.
template <typename Call>
bool run_all(FakeGpuRanks& gpus, const Call& call) {
  for (int rank = 0; rank < gpus.size(); ++rank)
    EXPECT_EQ(gpus.call(rank, call(rank)), kGpuDone) << gpus.outcome.text;
  bool all = true;
  for (int rank = 0; rank < gpus.size(); ++rank)
    all = gpus.finishes(rank) && all;
  return all;
}

Floats& of(std::vector<Floats>& all, int rank) {
  return all.at(static_cast<std::size_t>(rank));
}

TEST(FakeGpuComm, CarriesOutEveryKind) {
  FakeGpuRanks gpus(3);
  gpus.make_comms();
  std::vector<Floats> in{{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
  std::vector<Floats> out(3, Floats(3));
  const auto with = [&](LockstepGpuKind kind, std::size_t count) {
    return [&, kind, count](int rank) {
      LockstepGpuCall call =
          float_call(kind, of(in, rank).data(), of(out, rank).data(), count);
      call.peer = 1;
      if (kind == kGpuBroadcast) call.from = nullptr;
      return call;
    };
  };
  EXPECT_TRUE(run_all(gpus, with(kGpuAllReduce, 3)));
  EXPECT_THAT(out, Each(Floats{111, 222, 333}));
  EXPECT_TRUE(run_all(gpus, with(kGpuAllGather, 1)));
  EXPECT_THAT(out, Each(Floats{1, 10, 100}));
  EXPECT_TRUE(run_all(gpus, with(kGpuReduceScatter, 1)));
  EXPECT_EQ(out, (std::vector<Floats>{
                     {111, 10, 100}, {222, 10, 100}, {333, 10, 100}}));
  EXPECT_TRUE(run_all(gpus, with(kGpuReduce, 2)));
  EXPECT_EQ(out, (std::vector<Floats>{
                     {111, 10, 100}, {111, 222, 100}, {333, 10, 100}}));
  EXPECT_TRUE(run_all(gpus, with(kGpuBroadcast, 3)));
  EXPECT_THAT(out, Each(Floats{111, 222, 100}));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

// The result of two ranks with these elements.
template <typename T>
T of_two(DataType type, LockstepGpuSum sum, T first, T second) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::vector<T> memory{first, second};
  EXPECT_TRUE(run_all(gpus, [&](int rank) {
    T* own = &memory.at(static_cast<std::size_t>(rank));
    LockstepGpuCall call = float_call(kGpuAllReduce, nullptr, nullptr, 1);
    call.from = own;
    call.to = own;
    call.type = static_cast<std::int32_t>(type);
    call.sum = sum;
    return call;
  }));
  return memory[1];
}

TEST(FakeGpuComm, ReducesEveryType) {
  EXPECT_EQ(of_two<double>(DataType::kFloat64, kGpuAverage, 1, 2), 1.5);
  EXPECT_EQ(of_two<float>(DataType::kFloat32, kGpuProduct, 3, 2), 6);
  EXPECT_EQ(of_two<std::int8_t>(DataType::kInt8, kGpuSum, 127, 1), -128);
  EXPECT_EQ(of_two<std::int8_t>(DataType::kInt8, kGpuMin, -1, 1), -1);
  EXPECT_EQ(of_two<std::uint8_t>(DataType::kUInt8, kGpuMax, 255, 1), 255);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(of_two<std::int64_t>(DataType::kInt64, kGpuSum, kMost, 1),
            std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(to_float(of_two(DataType::kFloat16, kGpuSum, to_float16(1.5F),
                            to_float16(2))),
            3.5F);
  EXPECT_EQ(to_float(of_two(DataType::kBFloat16, kGpuAverage, to_bfloat16(1),
                            to_bfloat16(2))),
            1.5F);
}

TEST(FakeGpuComm, RefusesWhatCanNeverWork) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  LockstepGpuCall of_bool = float_sum(memory);
  of_bool.type = static_cast<std::int32_t>(DataType::kBool);
  EXPECT_EQ(gpus.call(0, of_bool), kGpuMisuse);
  EXPECT_EQ(gpus.call(0, float_send(memory, 2)), kGpuMisuse);
  EXPECT_EQ(gpus.call(0, float_call(kGpuAllReduce, nullptr, nullptr, 1)),
            kGpuMisuse);
  EXPECT_EQ(gpus.call_on(gpus.stream(1), 0, float_sum(memory)), kGpuMisuse);
  EXPECT_EQ(gpus.table.group_end(&gpus.outcome), kGpuMisuse);
}

TEST(FakeGpuComm, HangsOnMismatchedCollectivesUntilAborted) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::vector<Floats> memory(2, Floats(2, 1));
  const auto differing = [&](int rank) {
    LockstepGpuCall call = float_sum(of(memory, rank));
    if (rank == 1) call.count = 1;
    return call;
  };
  EXPECT_FALSE(run_all(gpus, differing));
  EXPECT_FALSE(gpus.fake.carry_out_all());
  for (const int rank : {0, 1}) gpus.abort(rank);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  for (const int rank : {0, 1}) EXPECT_TRUE(gpus.finishes(rank));
  EXPECT_THAT(memory, Each(Floats{1, 1}));
}

TEST(FakeGpuComm, WritesGarbageForMismatchedCollectivesIfChosen) {
  FakeGpuRanks gpus(2, {.mismatch = FakeGpuOptions::Mismatch::kWritesGarbage});
  gpus.make_comms();
  std::vector<Floats> memory(2, Floats(2, 1));
  EXPECT_TRUE(run_all(gpus, [&](int rank) {
    LockstepGpuCall call = float_sum(of(memory, rank));
    if (rank == 1) call.sum = kGpuMax;
    return call;
  }));
  for (const int rank : {0, 1}) EXPECT_NE(of(memory, rank), Floats({2, 2}));
}

TEST(FakeGpuComm, LetsPeersOfAnAbortedRankWaitOn) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  std::vector<Floats> memory(2, Floats(1));
  EXPECT_EQ(gpus.call(0, float_sum(memory[0])), kGpuDone);
  gpus.abort(0);
  EXPECT_EQ(gpus.call(1, float_sum(memory[1])), kGpuDone);
  EXPECT_TRUE(gpus.finishes(0));
  EXPECT_FALSE(gpus.finishes(1));
  EXPECT_EQ(gpus.table.comm_state(gpus.comm(1), &gpus.outcome), kGpuDone);
  gpus.abort(1);
  EXPECT_TRUE(gpus.finishes(1));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

// Each rank sends to the next and receives from the one before.
void give_ring(FakeGpuRanks& gpus, const std::vector<Floats>& from,
               std::vector<Floats>& to, int rank) {
  const int n = gpus.size();
  const auto own = static_cast<std::size_t>(rank);
  EXPECT_EQ(gpus.call(rank, float_send(from[own], (rank + 1) % n)), kGpuDone);
  EXPECT_EQ(gpus.call(rank, float_receive(to[own], (rank + n - 1) % n)),
            kGpuDone);
}

TEST(FakeGpuComm, SendsAroundARingInAGroup) {
  FakeGpuRanks gpus(3);
  gpus.make_comms();
  const std::vector<Floats> from{{0}, {1}, {2}};
  std::vector<Floats> to(3, Floats(1));
  for (int rank = 0; rank < 3; ++rank) {
    gpus.begin_group();
    give_ring(gpus, from, to, rank);
    EXPECT_EQ(gpus.end_group(), kGpuDone);
  }
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(gpus.finishes(rank));
  EXPECT_EQ(to, (std::vector<Floats>{{2}, {0}, {1}}));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpuComm, DeadlocksAroundARingWithoutAGroup) {
  FakeGpuRanks gpus(3);
  gpus.make_comms();
  const std::vector<Floats> from{{0}, {1}, {2}};
  std::vector<Floats> to(3, Floats(1));
  for (int rank = 0; rank < 3; ++rank) give_ring(gpus, from, to, rank);
  EXPECT_FALSE(gpus.fake.carry_out_all());
  EXPECT_THAT(to, Each(Floats{0}));
}

TEST(FakeGpuComm, SendsToItselfInAGroup) {
  FakeGpuRanks gpus(1);
  gpus.make_comms();
  const Floats from{1, 2};
  Floats to(2);
  gpus.begin_group();
  EXPECT_EQ(gpus.call(0, float_send(from, 0)), kGpuDone);
  EXPECT_EQ(gpus.call(0, float_receive(to, 0)), kGpuDone);
  EXPECT_EQ(gpus.end_group(), kGpuDone);
  EXPECT_TRUE(gpus.finishes(0));
  EXPECT_EQ(to, from);
}

TEST(FakeGpuComm, MatchesMessagesOfAPairInOrder) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  const std::vector<Floats> from{{1}, {2}, {3}};
  std::vector<Floats> to(3, Floats(1));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(gpus.call(0, float_send(from[i], 1)), kGpuDone);
    EXPECT_EQ(gpus.call(1, float_receive(to[i], 0)), kGpuDone);
  }
  EXPECT_TRUE(gpus.finishes(1));
  EXPECT_EQ(to, from);
}

TEST(FakeGpuComm, HasALateCallInNoStreamAndTakesNoOtherBeforeItStarts) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  const LockstepGpuCall call = float_sum(memory);
  EXPECT_EQ(gpus.table.use_device(0, nullptr, nullptr), kGpuDone);
  EXPECT_EQ(gpus.table.call(gpus.comm(0), &call, gpus.stream(0), nullptr),
            kGpuNotYet);
  LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
  EXPECT_EQ(gpus.table.call(gpus.comm(0), &call, gpus.stream(0), nullptr),
            kGpuMisuse);
  EXPECT_TRUE(gpus.happens(event));
  EXPECT_EQ(gpus.settle(gpus.comm(0)), kGpuDone);
}

TEST(FakeGpuComm, ReportsOverlapsWithinAGroup) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(4);
  gpus.begin_group();
  const LockstepGpuCall first =
      float_call(kGpuAllReduce, &memory[0], &memory[0], 3);
  const LockstepGpuCall second =
      float_call(kGpuAllReduce, &memory[2], &memory[2], 2);
  EXPECT_EQ(gpus.call(0, first), kGpuDone);
  EXPECT_EQ(gpus.call(0, second), kGpuDone);
  EXPECT_EQ(gpus.end_group(), kGpuDone);
  EXPECT_THAT(gpus.fake.violations(),
              Contains(HasSubstr("start together on the same memory")));
}

TEST(FakeGpuComm, OrdersWhatRanksDoByTheirCollectives) {
  for (const bool collective : {false, true}) {
    FakeGpuRanks gpus(2);
    gpus.make_comms();
    std::vector<Floats> memory(2, Floats(1));
    const Floats from{1};
    Floats shared(1);
    Floats to(1);
    gpus.copy(shared.data(), from.data(), sizeof(float), 0);
    for (const int rank : {0, 1}) {
      if (!collective) continue;
      EXPECT_EQ(gpus.call(rank, float_sum(of(memory, rank))), kGpuDone);
    }
    gpus.copy(to.data(), shared.data(), sizeof(float), 1);
    EXPECT_TRUE(gpus.fake.carry_out_all());
    EXPECT_EQ(gpus.fake.violations().size(), collective ? 0u : 1u);
  }
}

TEST(FakeGpuComm, OrdersAllStreamsOfAGroup) {
  for (const bool together : {false, true}) {
    FakeGpuRanks gpus(1);
    gpus.make_comms();
    LockstepGpuStream* other = nullptr;
    EXPECT_EQ(gpus.table.stream_create(&other, &gpus.outcome), kGpuDone);
    const Floats from{1};
    Floats shared(1);
    Floats to(1);
    std::vector<Floats> memory(2, Floats(1));
    gpus.copy(shared.data(), from.data(), sizeof(float), 0);
    if (together) gpus.begin_group();
    EXPECT_EQ(gpus.call(0, float_sum(memory[0])), kGpuDone);
    EXPECT_EQ(gpus.call_on(other, 0, float_sum(memory[1])), kGpuDone);
    if (together) {
      EXPECT_EQ(gpus.end_group(), kGpuDone);
    }
    EXPECT_EQ(gpus.table.copy(to.data(), shared.data(), sizeof(float), other,
                              &gpus.outcome),
              kGpuDone);
    EXPECT_TRUE(gpus.fake.carry_out_all());
    EXPECT_EQ(gpus.fake.violations().size(), together ? 0u : 1u);
  }
}

TEST(FakeGpuComm, ReportsTwoRanksThatWriteTheSameMemory) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  Floats memory(1);
  EXPECT_TRUE(run_all(gpus, [&](int) { return float_sum(memory); }));
  EXPECT_FALSE(gpus.fake.violations().empty());
}

}  // namespace
}  // namespace lockstep
