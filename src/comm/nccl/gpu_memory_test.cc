// Tests memory that a group's collectives access without copies, on a fake that
// tracks registrations: see src/comm/testing/fake_gpu/fake_gpu.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <latch>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/reference/reference_backend.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;
using Memory = std::shared_ptr<std::byte>;

constexpr std::size_t kCount = 6;
constexpr std::size_t kBytes = kCount * sizeof(float);

Device device_of(const Group& group) {
  return {DeviceKind::kCuda, group->rank()};
}

std::span<float> floats(const Memory& memory) {
  return {reinterpret_cast<float*>(memory.get()), kCount};
}

Buffer on_gpu(const Memory& memory, const Group& group) {
  Buffer buffer = view(floats(memory));
  buffer.device = device_of(group);
  return buffer;
}

Work sum_up(const Memory& memory, const Group& group) {
  return group->all_reduce(on_gpu(memory, group), ReduceOp::kSum);
}

class NcclMemory : public ::testing::Test {
 protected:
  void run(int ranks, const RankBody& body) {
    run_gpu_ranks(fake_.table(), ranks, body);
  }
  void TearDown() override {
    EXPECT_THAT(fake_.violations(), IsEmpty());
    EXPECT_EQ(fake_.alive(), FakeGpu::Alive());
  }

  // A block of ones.
  Memory ones(const Group& group) {
    Memory memory = group->core().allocate_on(device_of(group), kBytes);
    fake_.host_writes(memory.get(), kBytes);
    std::ranges::fill(floats(memory), 1.0F);
    return memory;
  }
  // Expects the sum of `ranks` ranks' ones.
  void expect_sums(const Memory& memory, int ranks) {
    fake_.host_reads(memory.get(), kBytes);
    EXPECT_THAT(floats(memory), Each(static_cast<float>(ranks)));
  }
  std::size_t registered() const { return fake_.alive().registrations; }
  std::size_t allocated() const { return fake_.alive().allocations; }
  // The group's thread frees it eventually.
  void await_allocated(std::size_t blocks) const {
    const Deadline enough(30s);
    while (allocated() > blocks && !enough.expired()) {
    }
    EXPECT_EQ(allocated(), blocks);
  }

  FakeGpu fake_{
      {.devices = 4, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

TEST_F(NcclMemory, IsZeroedAndOfTheDeviceAndWaitsForNobody) {
  run(2, [&](const Group& group) {
    if (group->rank() == 1) return;  // allocates nothing, calls nothing
    const Memory memory = group->core().allocate_on(device_of(group), kBytes);
    EXPECT_THAT(floats(memory), Each(0.0F));
    EXPECT_NE(group->core().allocate_on(device_of(group), 0), nullptr);
    EXPECT_EQ(fake_.alive().comms, 0u);
    EXPECT_EQ(registered(), 0u);
  });
}

TEST_F(NcclMemory, IsRegisteredByTheFirstOperationAndByLaterOnes) {
  run(2, [&](const Group& group) {
    const Memory before = ones(group);
    sum_up(before, group).synchronize();
    expect_sums(before, 2);
    group->barrier().wait();
    EXPECT_EQ(registered(), 2u);
    group->barrier().wait();
    const Memory after = ones(group);
    sum_up(after, group).synchronize();
    expect_sums(after, 2);
    group->barrier().wait();
    EXPECT_EQ(registered(), 4u);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsNotRegisteredWhereItIsOnAnotherDevice) {
  run(1, [&](const Group& group) {
    const Memory used = ones(group);
    const Memory other =
        group->core().allocate_on({DeviceKind::kCuda, 3}, kBytes);
    sum_up(used, group).synchronize();
    EXPECT_EQ(registered(), 1u);
  });
}

TEST_F(NcclMemory, IsFreedWhileTheGroupLives) {
  run(2, [&](const Group& group) {
    Memory kept = ones(group), dropped = ones(group);
    sum_up(kept, group).synchronize();
    sum_up(dropped, group).synchronize();
    group->barrier().wait();
    dropped.reset();
    await_allocated(2);
    EXPECT_EQ(registered(), 2u);
    sum_up(kept, group).synchronize();
    expect_sums(kept, 4);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsFreedOnlyWhenNothingOfTheGroupIsUnderWay) {
  std::latch looked(1);
  run(2, [&](const Group& group) {
    const Memory kept = ones(group);
    Memory dropped = ones(group);
    sum_up(dropped, group).synchronize();
    group->barrier().wait();
    if (group->rank() == 1) looked.wait();
    const Work work = sum_up(kept, group);
    if (group->rank() == 0) {
      dropped.reset();  // does not wait for rank 1
      // The group's thread would have enough time to free it.
      for (int looks = 0; looks < 5000; ++looks) {
        EXPECT_FALSE(work.done());
        std::this_thread::yield();
      }
      EXPECT_EQ(allocated(), 4u);
      EXPECT_EQ(registered(), 4u);
      looked.count_down();
    }
    work.synchronize();
    dropped.reset();
    await_allocated(2);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsFreedByManyThreadsWhileOthersReduce) {
  run(2, [&](const Group& group) {
    const Memory kept = group->core().allocate_on(device_of(group), kBytes);
    std::vector<std::thread> others;
    for (int i = 0; i < 3; ++i)
      others.emplace_back([&] {
        for (int n = 0; n < 30; ++n)
          group->core().allocate_on(device_of(group), kBytes);
      });
    for (int n = 0; n < 30; ++n) {
      const Memory used = ones(group);
      sum_up(used, group).synchronize();
      expect_sums(used, 2);
    }
    for (std::thread& other : others) other.join();
  });
}

TEST_F(NcclMemory, SurvivesItsGroup) {
  std::vector<Memory> memory(2);
  run(2, [&](const Group& group) {
    Memory& mine = memory[static_cast<std::size_t>(group->rank())];
    mine = ones(group);
    sum_up(mine, group).synchronize();
    group->leave();
    EXPECT_THAT(
        error_text([&] { group->core().allocate_on(device_of(group), 1); }),
        HasSubstr("was destroyed"));
  });
  EXPECT_EQ(registered(), 0u);
  EXPECT_EQ(allocated(), 2u);
  for (const Memory& its : memory) expect_sums(its, 2);
}

// NCCL frees a rank's memory only when the last rank of the process ends.
TEST_F(NcclMemory, IsRegisteredNoMoreWhenItsGroupIsLeft) {
  run(4, [&](const Group& group) {
    Memory memory = ones(group);
    sum_up(memory, group).synchronize();
    expect_sums(memory, 4);
    group->leave();
    memory.reset();
  });
}

TEST_F(NcclMemory, IsFreedWhenTheProcesssLastRankHasAborted) {
  for (int round = 0; round < 10; ++round) {
    run(4, [&](const Group& group) {
      Memory memory = ones(group);
      sum_up(memory, group).synchronize();
      group->barrier().wait();
      if (group->rank() == 0) group->abort("on purpose");
      EXPECT_THAT(
          error_text<Error>([&] { sum_up(memory, group).synchronize(); }),
          HasSubstr("on purpose"));
      // No task uses it any more.
      fake_.host_writes(memory.get(), kBytes);
      memory.reset();
    });
    EXPECT_EQ(allocated(), 0u);
  }
}

TEST_F(NcclMemory, SurvivesThatTheGroupIsAborted) {
  std::latch over(2);
  run(2, [&](const Group& group) {
    Memory kept = ones(group), dropped = ones(group);
    sum_up(dropped, group).synchronize();
    group->barrier().wait();
    if (group->rank() == 0) {
      const Work hangs = sum_up(kept, group);  // because rank 1 is missing
      dropped.reset();
      group->abort("on purpose");
      EXPECT_THAT(error_text<Error>([&] { hangs.synchronize(); }),
                  HasSubstr("on purpose"));
    }
    over.arrive_and_wait();
    EXPECT_THAT(error_text<Error>([&] { sum_up(kept, group).synchronize(); }),
                HasSubstr("on purpose"));
    // No task touches it any more.
    fake_.host_writes(kept.get(), kBytes);
    std::ranges::fill(floats(kept), 2.0F);
    kept.reset();
    const Memory late = group->core().allocate_on(device_of(group), kBytes);
    EXPECT_THAT(floats(late), Each(0.0F));
  });
}

TEST_F(NcclMemory, IsFreedThoughAPeerIsGone) {
  run(2, [&](const Group& group) {
    Memory memory = ones(group);
    sum_up(memory, group).synchronize();
    group->barrier().wait();
    if (group->rank() == 1) return group->abort("gone");
    try {
      sum_up(memory, group).synchronize();
    } catch (const Error&) {
      // The next call may get the error instead.
    }
    memory.reset();
  });
}

TEST_F(NcclMemory, IsLikeAnyOtherToASubGroup) {
  run(2, [&](const Group& group) {
    const auto both = split(*group, {});
    const Memory memory = ones(group);
    sum_up(memory, both).synchronize();
    expect_sums(memory, 2);
    EXPECT_EQ(registered(), 0u);
    both->barrier().wait();
  });
}

TEST_F(NcclMemory, IsLikeAnyOtherToMessages) {
  run(2, [&](const Group& group) {
    const Memory memory = ones(group);
    if (group->rank() == 0)
      group->isend(on_gpu(memory, group), 1).synchronize();
    else
      group->irecv(on_gpu(memory, group), 0).synchronize();
    EXPECT_EQ(registered(), 0u);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, SaysWhoAskedForHowMuchWhenThereIsNoneLeft) {
  run(2, [&](const Group& group) {
    if (group->rank() == 0) return;
    fake_.set_memory(FakeGpu::Memory::kNone);
    try {
      group->core().allocate_on(device_of(group), 12345);
      ADD_FAILURE() << "there was memory";
    } catch (const SystemError& error) {
      EXPECT_EQ(error.error_number(), ENOMEM);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("GPU 1"), HasSubstr("12345 bytes"),
                        HasSubstr("rank 1 of 2 (group \"test\")"),
                        HasSubstr("\n  next:    ")));
    }
    fake_.set_memory(FakeGpu::Memory::kEnough);
  });
}

TEST_F(NcclMemory, IsRefusedOnAGpuThatIsNotThere) {
  run(1, [&](const Group& group) {
    EXPECT_THAT(error_text([&] {
                  group->core().allocate_on({DeviceKind::kCuda, 4}, 1);
                }),
                AllOf(HasSubstr("no GPU 4"), HasSubstr("next:")));
  });
}

TEST_F(NcclMemory, IsTheGroupsOwnOnTheCpu) {
  run(1, [&](const Group& group) {
    const Memory memory = group->core().allocate_on({}, kBytes);
    EXPECT_THAT(floats(memory), Each(0.0F));
    EXPECT_EQ(allocated(), 0u);
  });
}

TEST_F(NcclMemory, IsRefusedByAGroupThatHasNoGpus) {
  const auto group = std::make_shared<ProcessGroup>(std::make_unique<GroupCore>(
      make_reference_backend({}, open_store("memory:")), GroupIdentity{}));
  EXPECT_THAT(error_text([&] {
                group->core().allocate_on({DeviceKind::kCuda, 0}, 1);
              }),
              AllOf(HasSubstr("GPU 0"), HasSubstr("\"reference\""),
                    HasSubstr("\n  next:    ")));
}

}  // namespace
}  // namespace lockstep
