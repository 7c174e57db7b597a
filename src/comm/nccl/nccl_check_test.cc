// Tests which GPU operations the ranks compare, depending on LOCKSTEP_CHECK.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu_plugin.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<float>;

// Numbers of floats of a small operation, and of a larger one.
constexpr std::size_t kFew = 16, kMany = std::size_t{17} << 10;

class NcclCheck : public ::testing::Test {
 protected:
  void SetUp() override { use_gpu_table(&fake_.table()); }
  void TearDown() override {
    use_gpu_table(nullptr);
    EXPECT_THAT(fake_.violations(), IsEmpty());
  }

  void run(OperationCheck check, const std::function<void(Group)>& body) {
    const auto store = open_store("memory:");
    Settings settings;
    settings.host_id = "one host";
    settings.check = check;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.emplace_back([&, rank] {
        try {
          body(make_group("hybrid", {.name = "test", .rank = rank, .size = 2},
                          std::make_shared<World>(store, settings)));
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
        }
      });
    for (std::thread& rank : ranks) rank.join();
  }

  static Buffer on_gpu(Floats& elements, const Group& group) {
    Buffer buffer = view(elements);
    buffer.device = {DeviceKind::kCuda, group->rank()};
    return buffer;
  }
  static void sum_up(Floats& elements, const Group& group) {
    group->all_reduce(on_gpu(elements, group), ReduceOp::kSum, {.timeout = 60s})
        .synchronize();
  }
  // The error of two ranks whose sums differ by an element, and its deadline.
  struct Heard {
    std::string text;
    std::chrono::milliseconds timeout;
  };
  void expect_of_mismatch(OperationCheck check, std::size_t count,
                          const Heard& heard) {
    run(check, [&](const Group& group) {
      Floats warm(1), elements(count + static_cast<std::size_t>(group->rank()));
      sum_up(warm, group);
      EXPECT_THAT(error_text<Error>([&] {
                    group
                        ->all_reduce(on_gpu(elements, group), ReduceOp::kSum,
                                     {.timeout = heard.timeout})
                        .synchronize();
                  }),
                  HasSubstr(heard.text));
    });
  }

  const Heard compared_{"operations that do not fit together", 60s};
  const Heard not_compared_{"set LOCKSTEP_CHECK=all", 300ms};
  FakeGpu fake_{
      {.devices = 2, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

class NcclCheckAtEveryLevel
    : public NcclCheck,
      public ::testing::WithParamInterface<OperationCheck> {};

TEST_P(NcclCheckAtEveryLevel, ChangesNoResult) {
  run(GetParam(), [&](const Group& group) {
    const auto mine = static_cast<float>(group->rank() + 1);
    const int peer = 1 - group->rank();
    for (const std::size_t count : {kFew, kMany, kFew}) {
      Floats sums(count, mine), out(count, mine), in(count);
      sum_up(sums, group);
      EXPECT_THAT(sums, Each(3.0F));
      const Work send = group->isend(on_gpu(out, group), peer);
      group->irecv(on_gpu(in, group), peer).synchronize();
      send.synchronize();
      EXPECT_THAT(in, Each(static_cast<float>(peer + 1)));
      // Each rank sends all its elements, in uneven parts.
      const std::vector<std::int64_t> counts{
          4, static_cast<std::int64_t>(count) - 4};
      const std::int64_t from_each =
          counts[static_cast<std::size_t>(group->rank())];
      Floats parts(static_cast<std::size_t>(2 * from_each));
      group
          ->all_to_all_v(split(on_gpu(out, group), counts),
                         split(on_gpu(parts, group),
                               std::vector<std::int64_t>{from_each, from_each}))
          .synchronize();
      EXPECT_EQ(parts.front(), 1.0F);
      EXPECT_EQ(parts.back(), 2.0F);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Nccl, NcclCheckAtEveryLevel,
                         ::testing::Values(OperationCheck::kAll,
                                           OperationCheck::kSmall,
                                           OperationCheck::kOff));

TEST_F(NcclCheck, FindsAMismatchOfWhatIsCompared) {
  expect_of_mismatch(OperationCheck::kAll, kMany, compared_);
  expect_of_mismatch(OperationCheck::kSmall, kFew, compared_);
}

TEST_F(NcclCheck, EndsWhatIsNotComparedAtItsDeadlineSayingWhy) {
  expect_of_mismatch(OperationCheck::kSmall, kMany, not_compared_);
  expect_of_mismatch(OperationCheck::kOff, kFew, not_compared_);
}

}  // namespace
}  // namespace lockstep
