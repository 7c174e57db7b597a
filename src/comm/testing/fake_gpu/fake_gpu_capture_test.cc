// Tests captures of a fake GPU's streams.
#include "src/comm/testing/fake_gpu/fake_gpu_capture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/comm/testing/fake_gpu/fake_gpu_ranks.h"

namespace lockstep {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Floats = std::vector<float>;

constexpr std::size_t kCapturedBytes = 4 * sizeof(float);

class FakeGpuCapture : public ::testing::Test {
 protected:
  LockstepGpuStream* other() {
    LockstepGpuStream* stream = nullptr;
    EXPECT_EQ(ranks_.table.stream_create(&stream, &ranks_.outcome), kGpuDone);
    return stream;
  }
  void copy(Floats& to, const Floats& from, LockstepGpuStream* stream) {
    EXPECT_EQ(ranks_.table.copy(to.data(), from.data(), kCapturedBytes, stream,
                                &ranks_.outcome),
              kGpuDone);
  }
  LockstepGpuStream* first() { return ranks_.stream(0); }
  void expect_spoilt(const std::string& why) {
    std::string text;
    EXPECT_EQ(ranks_.fake.end_capture(first(), &text), nullptr);
    EXPECT_THAT(text, HasSubstr(why));
  }

  FakeGpuRanks ranks_{1};
  Floats from_ = Floats(4, 1), between_ = Floats(4), to_ = Floats(4);
};

TEST_F(FakeGpuCapture, CarriesOutNothingBeforeItIsLaunched) {
  ranks_.fake.begin_capture(first());
  copy(to_, from_, first());
  std::string why;
  const auto graph = ranks_.fake.end_capture(first(), &why);
  ASSERT_TRUE(graph) << why;
  EXPECT_TRUE(ranks_.fake.carry_out_all());
  EXPECT_THAT(to_, Each(0.0F));
  ranks_.fake.launch(*graph, first());
  EXPECT_TRUE(ranks_.finishes(0));
  EXPECT_THAT(to_, Each(1.0F));
}

TEST_F(FakeGpuCapture, TakesInStreamsThatWaitForItsEvents) {
  LockstepGpuStream* const second = other();
  ranks_.fake.begin_capture(first());
  copy(between_, from_, first());
  ranks_.wait(second, ranks_.record(first(), 0));
  std::uint64_t one = 0, two = 0;
  EXPECT_EQ(ranks_.table.stream_capture(first(), &one, &ranks_.outcome),
            kGpuDone);
  EXPECT_EQ(ranks_.table.stream_capture(second, &two, &ranks_.outcome),
            kGpuDone);
  EXPECT_NE(one, 0U);
  EXPECT_EQ(one, two);
  copy(to_, between_, second);
  ranks_.wait(first(), ranks_.record(second, 0));
  std::string why;
  const auto graph = ranks_.fake.end_capture(first(), &why);
  ASSERT_TRUE(graph) << why;
  for (const float value : {1.0F, 2.0F}) {
    ranks_.fake.host_writes(from_.data(), kCapturedBytes);
    from_.assign(4, value);
    ranks_.fake.launch(*graph, first());
    EXPECT_TRUE(ranks_.finishes(0));
    ranks_.fake.host_reads(to_.data(), kCapturedBytes);
    EXPECT_THAT(to_, Each(value));
  }
  EXPECT_THAT(ranks_.fake.violations(), IsEmpty());
}

TEST_F(FakeGpuCapture, FindsWhatItsStreamsDoNotOrder) {
  LockstepGpuStream* const second = other();
  ranks_.fake.begin_capture(first());
  ranks_.wait(second, ranks_.record(first(), 0));
  copy(between_, from_, first());
  copy(to_, between_, second);
  ranks_.wait(first(), ranks_.record(second, 0));
  std::string why;
  const auto graph = ranks_.fake.end_capture(first(), &why);
  ASSERT_TRUE(graph) << why;
  ranks_.fake.launch(*graph, first());
  EXPECT_TRUE(ranks_.finishes(0));
  EXPECT_THAT(ranks_.fake.violations(),
              Each(HasSubstr("nothing orders the two")));
  EXPECT_FALSE(ranks_.fake.violations().empty());
}

TEST_F(FakeGpuCapture, IsSpoiltByAStreamThatIsNotWaitedFor) {
  LockstepGpuStream* const second = other();
  ranks_.fake.begin_capture(first());
  ranks_.wait(second, ranks_.record(first(), 0));
  copy(to_, from_, second);
  expect_spoilt("has not waited for");
}

TEST_F(FakeGpuCapture, IsSpoiltByWaitingForWhatWasGivenBefore) {
  LockstepGpuEvent* const before = ranks_.record(first(), 0);
  ranks_.fake.begin_capture(first());
  EXPECT_EQ(ranks_.table.stream_wait(first(), before, &ranks_.outcome),
            kGpuSpoiltCapture);
  std::uint64_t id = 0;
  EXPECT_EQ(ranks_.table.stream_capture(first(), &id, &ranks_.outcome),
            kGpuSpoiltCapture);
  expect_spoilt("not of its capture");
}

TEST_F(FakeGpuCapture, HasEventsThatNeverHappen) {
  ranks_.fake.begin_capture(first());
  LockstepGpuEvent* const event = ranks_.record(first(), 0);
  EXPECT_EQ(ranks_.table.event_query(event, &ranks_.outcome),
            kGpuSpoiltCapture);
  std::string why;
  EXPECT_TRUE(ranks_.fake.end_capture(first(), &why)) << why;
}

TEST_F(FakeGpuCapture, GivesCallsToTheCommunicatorAtEachLaunch) {
  ranks_.make_comms();
  std::string why;
  ranks_.fake.begin_capture(first());
  EXPECT_EQ(ranks_.call(0, float_sum(from_)), kGpuDone);
  const auto graph = ranks_.fake.end_capture(first(), &why);
  ASSERT_TRUE(graph) << why;
  copy(to_, from_, first());
  ranks_.fake.launch(*graph, first());
  ranks_.fake.launch(*graph, first());
  EXPECT_TRUE(ranks_.finishes(0));
  EXPECT_THAT(ranks_.fake.violations(), IsEmpty());
  ranks_.end_comms();
  EXPECT_THAT(ranks_.fake.violations(),
              Each(HasSubstr("before a graph that uses it")));
  ranks_.fake.launch(*graph, first());
  EXPECT_THAT(ranks_.fake.violations().back(),
              HasSubstr("whose communicator has ended"));
}

}  // namespace
}  // namespace lockstep
