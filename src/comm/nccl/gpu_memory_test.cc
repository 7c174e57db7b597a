// Tests memory that a group's collectives access without copies, on a fake that
// tracks registrations (src/comm/testing/fake_gpu/fake_gpu.h), or on real GPUs
// (src/comm/testing/gpu_ranks.h). Only the fake counts what is registered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/store/store.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/reference/reference_backend.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<float>;
using Memory = std::shared_ptr<std::byte>;

constexpr std::size_t kNumbers = 6;
constexpr std::size_t kNumberBytes = kNumbers * sizeof(float);

class NcclMemory : public GpuRanks {
 protected:
  void TearDown() override {
    GpuRanks::TearDown();
    EXPECT_EQ(fake_.alive(), FakeGpu::Alive());
  }

  Device device_of(const Group& group) const {
    return {DeviceKind::kCuda, gpu_of(group).index()};
  }
  DeviceBlock block(const Memory& memory, int rank) const {
    return {gpu_of(rank), memory, kNumberBytes};
  }
  Buffer on_gpu(const Memory& memory, const Group& group) const {
    return block(memory, group->rank()).floats();
  }
  Work sum_up(const Memory& memory, const Group& group) const {
    return group->all_reduce(on_gpu(memory, group), ReduceOp::kSum);
  }
  Memory allocate(const Group& group) const {
    return group->core().allocate_on(device_of(group), kNumberBytes);
  }
  // A block of ones.
  Memory ones(const Group& group) {
    Memory memory = allocate(group);
    write(block(memory, group->rank()), Floats(kNumbers, 1));
    return memory;
  }
  // Expects that each element of the rank's memory is `value`.
  void expect_each(const Memory& memory, int rank, float value) {
    EXPECT_THAT(read(block(memory, rank)), Each(value));
  }
  void expect_each(const Memory& memory, const Group& group, float value) {
    expect_each(memory, group->rank(), value);
  }

  void expect_registered(std::size_t blocks) const {
    if (!is_fake()) return;
    EXPECT_EQ(fake_.alive().registrations, blocks);
  }
  void expect_allocated(std::size_t blocks) const {
    if (!is_fake()) return;
    EXPECT_EQ(fake_.alive().allocations, blocks);
  }
  // The group's thread frees it eventually.
  void await_allocated(std::size_t blocks) const {
    const Deadline enough(30s);
    while (fake_.alive().allocations > blocks && !enough.expired()) {
    }
    expect_allocated(blocks);
  }
};

TEST_F(NcclMemory, IsZeroedAndOfTheDeviceAndWaitsForNobody) {
  run(2, [&](const Group& group) {
    if (group->rank() == 1) return;  // allocates nothing, calls nothing
    const Memory memory = allocate(group);
    expect_each(memory, group, 0);
    EXPECT_NE(group->core().allocate_on(device_of(group), 0), nullptr);
    EXPECT_EQ(fake_.alive().comms, 0U);
    expect_registered(0);
  });
}

TEST_F(NcclMemory, IsRegisteredByTheFirstOperationAndByLaterOnes) {
  run(2, [&](const Group& group) {
    const Memory before = ones(group);
    sum_up(before, group).synchronize();
    expect_each(before, group, 2);
    group->barrier().wait();
    expect_registered(2);
    group->barrier().wait();
    const Memory after = ones(group);
    sum_up(after, group).synchronize();
    expect_each(after, group, 2);
    group->barrier().wait();
    expect_registered(4);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsNotRegisteredWhereItIsOnAnotherDevice) {
  if (!is_fake()) GTEST_SKIP() << "only the fake counts what is registered";
  run(1, [&](const Group& group) {
    const Memory used = ones(group);
    const Memory other =
        group->core().allocate_on({DeviceKind::kCuda, 3}, kNumberBytes);
    sum_up(used, group).synchronize();
    expect_registered(1);
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
    expect_registered(2);
    sum_up(kept, group).synchronize();
    expect_each(kept, group, 4);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsFreedOnlyWhenNothingOfTheGroupIsUnderWay) {
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
    const Memory kept = ones(group);
    Memory dropped = ones(group);
    sum_up(dropped, group).synchronize();
    group->barrier().wait();
    if (group->rank() == 1) beside->barrier().wait();  // rank 0 has looked
    const Work work = sum_up(kept, group);
    if (group->rank() == 0) {
      dropped.reset();  // does not wait for rank 1
      // The group's thread would have enough time to free it.
      for (int looks = 0; looks < 5000; ++looks) {
        EXPECT_FALSE(work.done());
        std::this_thread::yield();
      }
      expect_allocated(4);
      expect_registered(4);
      beside->barrier().wait();
    }
    work.synchronize();
    dropped.reset();
    await_allocated(2);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, IsFreedByManyThreadsWhileOthersReduce) {
  run(2, [&](const Group& group) {
    const Memory kept = allocate(group);
    std::vector<std::thread> others;
    for (int i = 0; i < 3; ++i)
      others.emplace_back([&] {
        for (int n = 0; n < 30; ++n) allocate(group);
      });
    for (int n = 0; n < 30; ++n) {
      const Memory used = ones(group);
      sum_up(used, group).synchronize();
      expect_each(used, group, 2);
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
  expect_registered(0);
  expect_allocated(2);
  for (int rank = 0; rank < 2; ++rank)
    // A process on real GPUs has its own rank's.
    if (const Memory& its = memory[static_cast<std::size_t>(rank)])
      expect_each(its, rank, 2);
}

// NCCL frees a rank's memory only when the last rank of the process ends.
TEST_F(NcclMemory, IsRegisteredNoMoreWhenItsGroupIsLeft) {
  run(4, [&](const Group& group) {
    Memory memory = ones(group);
    sum_up(memory, group).synchronize();
    expect_each(memory, group, 4);
    group->leave();
    memory.reset();
  });
}

TEST_F(NcclMemory, IsFreedWhenTheProcesssLastRankHasAborted) {
  if (!is_fake()) GTEST_SKIP() << "only the fake has ranks in one process";
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
      fake_.host_writes(memory.get(), kNumberBytes);
      memory.reset();
    });
    expect_allocated(0);
  }
}

TEST_F(NcclMemory, SurvivesThatTheGroupIsAborted) {
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
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
    beside->barrier().wait();
    EXPECT_THAT(error_text<Error>([&] { sum_up(kept, group).synchronize(); }),
                HasSubstr("on purpose"));
    // No task touches it any more.
    write(block(kept, group->rank()), Floats(kNumbers, 2));
    kept.reset();
    const Memory late = allocate(group);
    expect_each(late, group, 0);
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
    expect_each(memory, group, 2);
    expect_registered(0);
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
    expect_registered(0);
    group->barrier().wait();
  });
}

TEST_F(NcclMemory, SaysWhoAskedForHowMuchWhenThereIsNoneLeft) {
  if (!is_fake()) GTEST_SKIP() << "only the fake can limit its memory";
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
  const int gpus = Gpu::count(table());
  run(1, [&](const Group& group) {
    EXPECT_THAT(
        error_text([&] {
          group->core().allocate_on({DeviceKind::kCuda, gpus}, 1);
        }),
        AllOf(HasSubstr("no GPU " + std::to_string(gpus)), HasSubstr("next:")));
  });
}

TEST_F(NcclMemory, IsTheGroupsOwnOnTheCpu) {
  run(1, [&](const Group& group) {
    const Memory memory = group->core().allocate_on({}, kNumberBytes);
    EXPECT_EQ(Floats(kNumbers),
              Floats(reinterpret_cast<float*>(memory.get()),
                     reinterpret_cast<float*>(memory.get()) + kNumbers));
    expect_allocated(0);
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
