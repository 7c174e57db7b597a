// Tests streams, events, memory and faults of fake GPUs. fake_gpu_comm_test.cc
// and fake_gpu_calls_test.cc test their communicators.
#include "src/comm/testing/fake_gpu/fake_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

namespace lockstep {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

using Ints = std::vector<int>;

std::size_t bytes_of(const Ints& memory) { return memory.size() * sizeof(int); }

void copy(FakeGpuRanks& gpus, Ints& to, const Ints& from, int rank) {
  gpus.copy(to.data(), from.data(), bytes_of(from), rank);
}

TEST(FakeGpu, CarriesNothingOutBeforeSomebodyLooks) {
  FakeGpuRanks gpus(1);
  const Ints from{1, 2, 3};
  Ints to(3);
  copy(gpus, to, from, 0);
  EXPECT_EQ(to, Ints(3));
  EXPECT_TRUE(gpus.finishes(0));
  EXPECT_EQ(to, from);
}

TEST(FakeGpu, KeepsTheOrderWithinAStream) {
  FakeGpuRanks gpus(1);
  Ints numbers(100);
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = static_cast<int>(i);
  int last = -1;
  for (const int& number : numbers) gpus.copy(&last, &number, sizeof last, 0);
  EXPECT_TRUE(gpus.finishes(0));
  EXPECT_EQ(last, 99);
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpu, HoldsSomeThingsBackForSeveralLooks) {
  constexpr int kFewLooks = 4;
  int held_back = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    FakeGpuRanks gpus(1, {.seed = seed});
    LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
    LockstepGpuResult result = kGpuNotYet;
    for (int i = 0; i < kFewLooks; ++i)
      result = gpus.table.event_query(event, &gpus.outcome);
    if (result == kGpuNotYet) ++held_back;
    EXPECT_TRUE(gpus.happens(event));
  }
  EXPECT_GT(held_back, 5);
  EXPECT_LT(held_back, 50);
}

// Which of two unordered copies is the last, for one seed.
int last_of_two(std::uint64_t seed) {
  FakeGpuRanks gpus(2, {.seed = seed});
  const int first = 1;
  const int second = 2;
  int last = 0;
  gpus.copy(&last, &first, sizeof last, 0);
  gpus.copy(&last, &second, sizeof last, 1);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  EXPECT_THAT(gpus.fake.violations(),
              Contains(HasSubstr("nothing orders the two")));
  return last;
}

TEST(FakeGpu, DrawsTheOrderAcrossStreamsFromItsSeed) {
  int ones = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const int last = last_of_two(seed);
    EXPECT_EQ(last, last_of_two(seed)) << seed;
    if (last == 1) ++ones;
  }
  EXPECT_GT(ones, 10);
  EXPECT_LT(ones, 90);
}

TEST(FakeGpu, LetsAStreamWaitForAnEvent) {
  FakeGpuRanks gpus(2);
  const Ints from{1, 2, 3};
  Ints between(3);
  Ints to(3);
  copy(gpus, between, from, 0);
  gpus.wait(gpus.stream(1), gpus.record(gpus.stream(0), 0));
  copy(gpus, to, between, 1);
  EXPECT_TRUE(gpus.finishes(1));
  gpus.fake.host_reads(to.data(), bytes_of(to));
  EXPECT_EQ(to, from);
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpu, ReportsAForgottenStreamWait) {
  FakeGpuRanks gpus(2);
  const Ints from{1, 2, 3};
  Ints between(3);
  Ints to(3);
  copy(gpus, between, from, 0);
  copy(gpus, to, between, 1);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  EXPECT_THAT(gpus.fake.violations(),
              Contains(HasSubstr("nothing orders the two")));
}

TEST(FakeGpu, ReportsAWaitThatCameBeforeTheRecord) {
  FakeGpuRanks gpus(2);
  const Ints from{1, 2, 3};
  Ints between(3);
  Ints to(3);
  LockstepGpuEvent* event = gpus.new_event(0);
  copy(gpus, between, from, 0);
  gpus.wait(gpus.stream(1), event);
  EXPECT_EQ(gpus.table.event_record(event, gpus.stream(0), nullptr), kGpuDone);
  copy(gpus, to, between, 1);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpu, TakesAnEventThatWasNeverRecordedAsHappened) {
  FakeGpuRanks gpus(1);
  LockstepGpuEvent* event = gpus.new_event(0);
  EXPECT_EQ(gpus.table.event_query(event, &gpus.outcome), kGpuDone);
  gpus.wait(gpus.stream(0), event);
  EXPECT_TRUE(gpus.finishes(0));
}

TEST(FakeGpu, RecordsWhereAStreamIsAtThatMoment) {
  FakeGpuRanks gpus(2);
  LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
  // A stream that never reaches the event delays only its later tasks.
  gpus.make_comms();
  std::vector<float> memory(1);
  EXPECT_EQ(gpus.call(0, float_sum(memory)), kGpuDone);
  EXPECT_TRUE(gpus.happens(event));
  EXPECT_EQ(gpus.table.event_record(event, gpus.stream(0), nullptr), kGpuDone);
  EXPECT_FALSE(gpus.happens(event));
  gpus.abort(0);
  EXPECT_TRUE(gpus.happens(event));
}

TEST(FakeGpu, ReportsAnUnorderedReadByTheHost) {
  for (const bool carried_out : {false, true}) {
    FakeGpuRanks gpus(1);
    const Ints from{1, 2, 3};
    Ints to(3);
    copy(gpus, to, from, 0);
    if (carried_out) {
      EXPECT_TRUE(gpus.fake.carry_out_all());
    }
    gpus.fake.host_reads(from.data(), bytes_of(from));
    EXPECT_THAT(gpus.fake.violations(), IsEmpty());  // both only read
    gpus.fake.host_reads(to.data(), bytes_of(to));
    EXPECT_EQ(gpus.fake.violations().size(), 1u) << carried_out;
  }
}

TEST(FakeGpu, ReportsAnUnorderedWriteByTheHost) {
  FakeGpuRanks gpus(1);
  Ints from{1, 2, 3};
  Ints to(3);
  gpus.fake.host_writes(from.data(), bytes_of(from));
  copy(gpus, to, from, 0);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
  gpus.fake.host_writes(&from[1], sizeof from[1]);
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpu, KnowsOfEachThreadOnlyWhatItSaw) {
  using Threads = FakeGpuOptions::Threads;
  for (const Threads threads :
       {Threads::kKnowWhatTheySaw, Threads::kKnowWhatAnySaw}) {
    FakeGpuRanks gpus(1, {.threads = threads});
    const Ints from{1, 2, 3};
    Ints to(3);
    copy(gpus, to, from, 0);
    LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
    std::thread([&] { EXPECT_TRUE(gpus.happens(event)); }).join();
    gpus.fake.host_reads(to.data(), bytes_of(to));
    const std::size_t wrong = threads == Threads::kKnowWhatTheySaw ? 1 : 0;
    EXPECT_EQ(gpus.fake.violations().size(), wrong);
    gpus.fake.hear_from_all_threads();
    gpus.fake.host_writes(to.data(), bytes_of(to));
    EXPECT_EQ(gpus.fake.violations().size(), wrong);
  }
}

TEST(FakeGpu, ReportsWhatTheHostDoesOnTwoThreadsUnordered) {
  FakeGpuRanks gpus(1);
  Ints memory(1);
  gpus.fake.host_writes(memory.data(), bytes_of(memory));
  LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
  const auto read = [&] {
    EXPECT_TRUE(gpus.happens(event));
    gpus.fake.host_reads(memory.data(), bytes_of(memory));
  };
  std::thread(read).join();
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
  // After the moment that the event marks.
  gpus.fake.host_writes(memory.data(), bytes_of(memory));
  const std::size_t before = gpus.fake.violations().size();
  std::thread(read).join();
  EXPECT_EQ(gpus.fake.violations().size(), before + 1);
}

TEST(FakeGpu, HasACurrentDeviceForEachThread) {
  FakeGpuRanks gpus(2);
  EXPECT_EQ(gpus.table.use_device(1, nullptr, &gpus.outcome), kGpuDone);
  EXPECT_EQ(gpus.table.use_device(2, nullptr, &gpus.outcome), kGpuMisuse);
  LockstepGpuEvent* here = nullptr;
  LockstepGpuEvent* there = nullptr;
  EXPECT_EQ(gpus.table.event_create(&here, &gpus.outcome), kGpuDone);
  std::thread([&] { gpus.table.event_create(&there, nullptr); }).join();
  EXPECT_EQ(gpus.table.event_record(here, gpus.stream(1), nullptr), kGpuDone);
  EXPECT_EQ(gpus.table.event_record(there, gpus.stream(1), nullptr),
            kGpuMisuse);
  EXPECT_EQ(gpus.table.event_record(there, gpus.stream(0), nullptr), kGpuDone);
  // The null stream is the current device's.
  EXPECT_EQ(gpus.table.event_record(here, nullptr, nullptr), kGpuDone);
  EXPECT_EQ(gpus.table.event_record(there, nullptr, nullptr), kGpuMisuse);
}

TEST(FakeGpu, AllocatesZeroedMemoryAndGuardsItsBounds) {
  FakeGpuRanks gpus(1);
  void* memory = nullptr;
  EXPECT_EQ(gpus.table.allocate(&memory, 12, &gpus.outcome), kGpuDone);
  Ints to(4, 7);
  gpus.copy(to.data(), memory, 12, 0);
  EXPECT_TRUE(gpus.finishes(0));
  EXPECT_EQ(to, (Ints{0, 0, 0, 7}));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
  gpus.copy(memory, to.data(), 16, 0);
  EXPECT_EQ(gpus.fake.violations().size(), 1u);
}

TEST(FakeGpu, ReportsMemoryThatIsReleasedWhileInUse) {
  FakeGpuRanks gpus(1);
  void* memory = nullptr;
  EXPECT_EQ(gpus.table.allocate(&memory, 12, &gpus.outcome), kGpuDone);
  Ints to(3);
  gpus.copy(to.data(), memory, 12, 0);
  gpus.table.release(memory);
  EXPECT_THAT(gpus.fake.violations(), Contains(HasSubstr("is still to use")));
  gpus.table.release(memory);
  EXPECT_EQ(gpus.fake.violations().size(), 2u);
}

TEST(FakeGpu, ForgetsMemoryThatHasEnded) {
  FakeGpuRanks gpus(1);
  const Ints from{1, 2, 3};
  Ints to(3);
  copy(gpus, to, from, 0);
  EXPECT_TRUE(gpus.fake.carry_out_all());
  gpus.fake.forget(to.data(), bytes_of(to));
  gpus.fake.host_writes(to.data(), bytes_of(to));
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpu, ReportsWhatIsUsedAfterItsEnd) {
  FakeGpuRanks gpus(1);
  LockstepGpuEvent* event = gpus.new_event(0);
  gpus.table.event_destroy(event);
  EXPECT_EQ(gpus.table.event_query(event, &gpus.outcome), kGpuMisuse);
  gpus.table.stream_destroy(gpus.stream(0));
  gpus.table.stream_destroy(gpus.stream(0));
  EXPECT_EQ(gpus.fake.violations().size(), 2u);
}

TEST(FakeGpu, CarriesOutWhatADestroyedStreamWasGiven) {
  FakeGpuRanks gpus(1);
  const Ints from{1, 2, 3};
  Ints to(3);
  copy(gpus, to, from, 0);
  LockstepGpuEvent* event = gpus.record(gpus.stream(0), 0);
  gpus.table.stream_destroy(gpus.stream(0));
  EXPECT_TRUE(gpus.happens(event));
  EXPECT_EQ(to, from);
}

TEST(FakeGpu, CountsWhatIsAlive) {
  FakeGpuRanks gpus(2);
  gpus.make_comms();
  void* memory = nullptr;
  void* handle = nullptr;
  EXPECT_EQ(gpus.table.use_device(0, nullptr, &gpus.outcome), kGpuDone);
  EXPECT_EQ(gpus.table.allocate(&memory, 1, nullptr), kGpuDone);
  EXPECT_EQ(gpus.table.register_memory(gpus.comm(0), memory, 1, &handle,
                                       &gpus.outcome),
            kGpuDone);
  LockstepGpuEvent* event = gpus.new_event(0);
  const FakeGpu::Alive all{.streams = 2,
                           .events = 1,
                           .comms = 2,
                           .allocations = 1,
                           .registrations = 1};
  EXPECT_EQ(gpus.fake.alive(), all);
  gpus.table.unregister_memory(gpus.comm(0), handle);
  gpus.table.release(memory);
  gpus.table.event_destroy(event);
  gpus.end_comms();
  for (const int rank : {0, 1}) gpus.table.stream_destroy(gpus.stream(rank));
  EXPECT_EQ(gpus.fake.alive(), FakeGpu::Alive{});
  EXPECT_THAT(gpus.fake.violations(), IsEmpty());
}

TEST(FakeGpu, HasNoMemoryWhenTold) {
  FakeGpuRanks gpus(1);
  void* memory = nullptr;
  LockstepGpuStream* stream = nullptr;
  gpus.fake.set_memory(FakeGpu::Memory::kNone);
  EXPECT_EQ(gpus.table.allocate(&memory, 1, &gpus.outcome), kGpuNoMemory);
  EXPECT_EQ(gpus.table.stream_create(&stream, &gpus.outcome), kGpuNoMemory);
  gpus.fake.set_memory(FakeGpu::Memory::kEnough);
  EXPECT_EQ(gpus.table.allocate(&memory, 1, &gpus.outcome), kGpuDone);
}

TEST(FakeGpu, ShowsAsManyDevicesAsTold) {
  FakeGpuRanks gpus(3);
  std::int32_t count = 0;
  EXPECT_EQ(gpus.table.device_count(&count, &gpus.outcome), kGpuDone);
  EXPECT_EQ(count, 3);
  char names[2][64];
  for (const int device : {0, 1})
    EXPECT_EQ(gpus.table.device_name(device, names[device], 64, nullptr),
              kGpuDone);
  EXPECT_STRNE(names[0], names[1]);
  gpus.fake.show_devices(0);
  EXPECT_EQ(gpus.table.device_count(&count, &gpus.outcome), kGpuDone);
  EXPECT_EQ(count, 0);
  gpus.fake.lose_driver("install one");
  EXPECT_EQ(gpus.table.device_count(&count, &gpus.outcome), kGpuNoDriver);
  EXPECT_STREQ(gpus.outcome.text, "install one");
}

TEST(FakeGpu, SaysAtEventsThatADeviceHasFailed) {
  FakeGpuRanks gpus(2);
  LockstepGpuEvent* event = gpus.record(gpus.stream(1), 1);
  LockstepGpuEvent* other = gpus.record(gpus.stream(0), 0);
  gpus.fake.fail_device(1, "an illegal access");
  EXPECT_EQ(gpus.table.event_query(event, &gpus.outcome), kGpuFailed);
  EXPECT_STREQ(gpus.outcome.text, "an illegal access");
  EXPECT_TRUE(gpus.happens(other));
}

}  // namespace
}  // namespace lockstep
