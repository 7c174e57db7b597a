// Tests the GPU backend on a fake of CUDA and NCCL that runs every task late
// and detects unordered accesses: see src/comm/testing/fake_gpu/fake_gpu.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <latch>
#include <numeric>
#include <optional>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/operation/backend.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<float>;

FakeGpuOptions devices(int count) {
  return {.devices = count,
          .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw};
}

// On the device of a rank.
Buffer on_gpu(Floats& elements, int device) {
  Buffer buffer = view(elements);
  buffer.device = {DeviceKind::kCuda, device};
  return buffer;
}
Buffer on_gpu(Floats& elements, const Group& group) {
  return on_gpu(elements, group->rank());
}

Floats numbers(const Group& group, std::size_t count = 6) {
  return Floats(count, static_cast<float>(group->rank() + 1));
}

class Nccl : public ::testing::Test {
 protected:
  void run(int ranks, const RankBody& body) {
    run_gpu_ranks(fake_.table(), ranks, body);
  }
  void TearDown() override { EXPECT_THAT(fake_.violations(), IsEmpty()); }

  FakeGpu fake_{devices(4)};
};

TEST_F(Nccl, BeginsWhenTheCallersStreamHasComeToIt) {
  run(2, [&](const Group& group) {
    const Gpu gpu(fake_.table(), group->rank());
    const GpuScope scope(gpu);
    const GpuStream stream(gpu);
    LockstepGpuOutcome outcome{};
    Floats source = numbers(group), sums(6), result(6);
    // The stream copies the sums' input in and their output out.
    ASSERT_EQ(fake_.table().copy(sums.data(), source.data(), 24, stream.get(),
                                 &outcome),
              kGpuDone);
    group
        ->all_reduce(on_gpu(sums, group), ReduceOp::kSum,
                     {.stream = stream.get()})
        .wait();
    ASSERT_EQ(fake_.table().copy(result.data(), sums.data(), 24, stream.get(),
                                 &outcome),
              kGpuDone);
    GpuEvent end(gpu);
    end.record(stream.get());
    while (!end.happened()) {
    }
    fake_.host_reads(result.data(), 24);
    EXPECT_THAT(result, Each(3.0F));
  });
}

TEST_F(Nccl, LetsAnotherStreamWaitToo) {
  run(2, [&](const Group& group) {
    const Gpu gpu(fake_.table(), group->rank());
    const GpuScope scope(gpu);
    const GpuStream other(gpu);
    LockstepGpuOutcome outcome{};
    Floats sums = numbers(group), result(6);
    const Work work = group->all_reduce(on_gpu(sums, group), ReduceOp::kSum);
    work.order_before(other.get());
    ASSERT_EQ(fake_.table().copy(result.data(), sums.data(), 24, other.get(),
                                 &outcome),
              kGpuDone);
    GpuEvent end(gpu);
    end.record(other.get());
    while (!end.happened()) {
    }
    EXPECT_THAT(result, Each(3.0F));
    work.synchronize();
  });
}

TEST_F(Nccl, DoesNotKeepTheHostForARankThatIsLate) {
  std::latch rank_0_has_waited(1);
  run(2, [&](const Group& group) {
    Floats warm = numbers(group), sums = numbers(group);
    group->all_reduce(on_gpu(warm, group), ReduceOp::kSum).synchronize();
    if (group->rank() == 1) rank_0_has_waited.wait();
    const Work work = group->all_reduce(on_gpu(sums, group), ReduceOp::kSum);
    work.wait();
    if (group->rank() == 0) {
      EXPECT_EQ(work.missing(), std::vector<int>{1});
      rank_0_has_waited.count_down();
    }
    work.synchronize();
    fake_.host_reads(sums.data(), 24);
    EXPECT_THAT(sums, Each(3.0F));
  });
}

TEST_F(Nccl, TakesMoreThanADeviceIsGivenAtOnce) {
  std::latch given(1);
  run(2, [&](const Group& group) {
    std::vector<Floats> elements(500, numbers(group, 1));
    std::vector<Work> works;
    Floats first = numbers(group);  // its ranks connect
    group->all_reduce(on_gpu(first, group), ReduceOp::kSum).synchronize();
    if (group->rank() == 1) given.wait();
    for (Floats& one : elements)
      works.push_back(group->all_reduce(on_gpu(one, group), ReduceOp::kSum));
    if (group->rank() == 0) given.count_down();
    for (const Work& work : works) work.synchronize();
    for (Floats& one : elements) {
      fake_.host_reads(one.data(), sizeof(float));
      EXPECT_THAT(one, Each(3.0F));
    }
  });
}

TEST_F(Nccl, SharesAGroupWithBuffersOfTheCpu) {
  run(3, [&](const Group& group) {
    for (int i = 0; i < 5; ++i) {
      Floats of_gpu = numbers(group), of_cpu = numbers(group);
      const Work gpu = group->all_reduce(on_gpu(of_gpu, group), ReduceOp::kSum);
      group->all_reduce(view(of_cpu), ReduceOp::kSum).wait();
      EXPECT_THAT(of_cpu, Each(6.0F));
      gpu.synchronize();
      EXPECT_THAT(of_gpu, Each(6.0F));
    }
    group->barrier().wait();
  });
}

TEST_F(Nccl, TellsAllRanksThatTheyCalledDifferentOperations) {
  run(3, [&](const Group& group) {
    Floats elements = numbers(group, group->rank() == 2 ? 5 : 4);
    EXPECT_THAT(error_text<Mismatch>([&] {
                  group->all_reduce(on_gpu(elements, group), ReduceOp::kSum)
                      .synchronize();
                }),
                AllOf(HasSubstr("4 x float32"), HasSubstr("5 x float32"),
                      HasSubstr("rank 2")));
    // The group is unusable afterwards.
    EXPECT_THAT(
        error_text<Error>([&] {
          group->all_reduce(on_gpu(elements, group), ReduceOp::kSum).wait();
        }),
        HasSubstr("5 x float32"));
  });
}

TEST_F(Nccl, TellsAllRanksOfCountsThatDoNotFit) {
  run(2, [&](const Group& group) {
    // Rank 0 has 4 for rank 1, which expects 3.
    const std::vector<std::int64_t> counts{3, group->rank() == 0 ? 4 : 3};
    Floats out(static_cast<std::size_t>(3 + counts[1])), in(6);
    const std::vector<Buffer> outputs =
        split(on_gpu(in, group), std::vector<std::int64_t>{3, 3});
    const std::vector<Buffer> inputs = split(on_gpu(out, group), counts);
    EXPECT_THAT(error_text<Mismatch>([&] {
                  group->all_to_all_v(inputs, outputs).synchronize();
                }),
                HasSubstr("all_to_all"));
  });
}

TEST_F(Nccl, TellsBothRanksOfAMessageThatDoesNotFit) {
  run(2, [&](const Group& group) {
    Floats elements = numbers(group, group->rank() == 0 ? 6 : 5);
    EXPECT_THAT(error_text<Error>([&] {
                  if (group->rank() == 0) {
                    group->isend(on_gpu(elements, group), 1).synchronize();
                    group->irecv(on_gpu(elements, group), 1).synchronize();
                  } else {
                    group->irecv(on_gpu(elements, group), 0).synchronize();
                  }
                }),
                AllOf(HasSubstr("6 x float32"), HasSubstr("5 x float32")));
  });
}

TEST_F(Nccl, SaysWhoseMessageWasReceived) {
  // Lives until the groups are left, and so until the devices are done.
  std::vector<Floats> memory(2, Floats(6));
  run(2, [&](const Group& group) {
    const Buffer buffer =
        on_gpu(memory[static_cast<std::size_t>(group->rank())], group);
    if (group->rank() == 0) {
      group->send(buffer, 1);
      group->isend(buffer, 1).synchronize();
    } else {
      EXPECT_EQ(group->recv(buffer, 0), 0);
      const Work work = group->irecv(buffer, 0);
      work.synchronize();
      EXPECT_EQ(work.source_rank(), 0);
    }
  });
}

TEST_F(Nccl, EndsAtItsDeadlineNamingWhoDidNotCome) {
  std::latch over(2);
  run(2, [&](const Group& group) {
    Floats warm = numbers(group), sums = numbers(group);
    group->all_reduce(on_gpu(warm, group), ReduceOp::kSum).synchronize();
    const auto reduce = [&](std::optional<std::chrono::nanoseconds> timeout) {
      group
          ->all_reduce(on_gpu(sums, group), ReduceOp::kSum,
                       {.timeout = timeout})
          .synchronize();
    };
    if (group->rank() == 0) {
      EXPECT_THAT(
          error_text<Timeout>([&] { reduce(200ms); }),
          AllOf(HasSubstr("all_reduce #2 (sum, 6 x float32) timed out after"),
                HasSubstr("GPU 0"), HasSubstr("missing: rank 1"),
                HasSubstr("next:")));
    }
    over.arrive_and_wait();
    if (group->rank() == 1) {
      EXPECT_THAT(error_text<PeerFailure>([&] { reduce({}); }),
                  HasSubstr("timed out"));
    }
  });
}

TEST_F(Nccl, EndsAtItsDeadlineThoughTheHostDoesNotWait) {
  std::latch over(2);
  run(2, [&](const Group& group) {
    Floats warm = numbers(group), sums = numbers(group);
    group->all_reduce(on_gpu(warm, group), ReduceOp::kSum).synchronize();
    if (group->rank() == 0) {
      const Work work = group->all_reduce(on_gpu(sums, group), ReduceOp::kSum,
                                          {.timeout = 100ms});
      work.wait();
      while (!work.done()) {
      }
      EXPECT_THAT(error_text<Timeout>([&] {
                    group->all_reduce(on_gpu(sums, group), ReduceOp::kSum);
                    work.wait();
                  }),
                  HasSubstr("all_reduce #2"));
    }
    over.arrive_and_wait();
  });
}

TEST_F(Nccl, EndsMessagesToARankThatWasAborted) {
  run(2, [&](const Group& group) {
    Floats elements = numbers(group);
    const Buffer buffer = on_gpu(elements, group);
    for (const bool aborted : {false, true}) {
      if (group->rank() == 1) {
        if (aborted) return group->abort("no more letters");
        group->irecv(buffer, 0).synchronize();
        group->barrier().wait();
        continue;
      }
      const Work work = group->isend(buffer, 1);
      if (!aborted) {
        work.synchronize();
        group->barrier().wait();
      } else {
        // Rank 0 may learn of it before it sends.
        EXPECT_THAT(error_text<PeerFailure>([&] { work.synchronize(); }),
                    AllOf(AnyOf(HasSubstr("send"), HasSubstr("group's work")),
                          HasSubstr("no more letters")));
      }
    }
  });
  EXPECT_EQ(fake_.alive(), FakeGpu::Alive());
}

TEST_F(Nccl, NamesARankThatWasAbortedOnAllOthers) {
  run(4, [&](const Group& group) {
    Floats warm = numbers(group), sums = numbers(group);
    group->all_reduce(on_gpu(warm, group), ReduceOp::kSum).synchronize();
    group->barrier().wait();  // complete on all ranks
    if (group->rank() == 1) return group->abort("out of ideas");
    try {
      group->all_reduce(on_gpu(sums, group), ReduceOp::kSum).synchronize();
    } catch (const PeerFailure& failure) {
      EXPECT_EQ(failure.rank(), 1);
    }
    EXPECT_THAT(
        error_text<PeerFailure>([&] {
          group->all_reduce(on_gpu(sums, group), ReduceOp::kSum).synchronize();
        }),
        AllOf(HasSubstr("rank 1"), HasSubstr("out of ideas")));
  });
}

TEST_F(Nccl, EndsOnAllRanksWhenTheLibraryFailsOnOne) {
  run(2, [&](const Group& group) {
    Floats warm = numbers(group), sums = numbers(group);
    group->all_reduce(on_gpu(warm, group), ReduceOp::kSum).synchronize();
    group->barrier().wait();
    if (group->rank() == 0)
      fake_.fail_comms_of(0, kGpuPeerLost, "a cable was pulled");
    group->barrier().wait();
    EXPECT_THAT(
        error_text<Error>([&] {
          group->all_reduce(on_gpu(sums, group), ReduceOp::kSum).synchronize();
        }),
        AllOf(HasSubstr("all_reduce #4"), HasSubstr("a cable was pulled")));
  });
}

TEST_F(Nccl, PassesMessagesInAnyOrderWithoutDeadlock) {
  run(3, [&](const Group& group) {
    const int next = (group->rank() + 1) % 3, before = (group->rank() + 2) % 3;
    for (int i = 0; i < 4; ++i) {
      Floats mine = numbers(group), theirs(6), sums = numbers(group);
      std::vector<Work> works;
      const auto send = [&] {
        works.push_back(group->isend(on_gpu(mine, group), next));
      };
      const auto receive = [&] {
        works.push_back(group->irecv(on_gpu(theirs, group), before));
      };
      const auto reduce = [&] {
        works.push_back(group->all_reduce(on_gpu(sums, group), ReduceOp::kSum));
      };
      // Each rank in another order.
      if (group->rank() == 0) send(), reduce(), receive();
      if (group->rank() == 1) reduce(), send(), receive();
      if (group->rank() == 2) receive(), send(), reduce();
      for (const Work& work : works) work.synchronize();
      EXPECT_THAT(theirs, Each(static_cast<float>(before + 1)));
      EXPECT_THAT(sums, Each(6.0F));
    }
  });
}

TEST_F(Nccl, RefusesWhatNcclHasNot) {
  run(2, [&](const Group& group) {
    Floats elements = numbers(group);
    const Buffer buffer = on_gpu(elements, group);
    const auto peer = 1 - group->rank();
    EXPECT_THAT(error_text([&] { group->isend(buffer, peer, 7); }),
                HasSubstr("\"nccl\" cannot do send"));
    EXPECT_THAT(error_text([&] { group->irecv(buffer, kAnySource); }),
                HasSubstr("\"nccl\" cannot do receive"));
    std::vector<std::int32_t> bits(4);
    Buffer of_bits = view(bits);
    of_bits.device = buffer.device;
    EXPECT_THAT(
        error_text([&] { group->all_reduce(of_bits, ReduceOp::kBxor); }),
        HasSubstr("\"nccl\" cannot do all_reduce"));
    group->all_reduce(buffer, ReduceOp::kSum).synchronize();
    group->barrier().wait();
    Buffer elsewhere = buffer;
    elsewhere.device.index = 3;
    EXPECT_THAT(error_text([&] {
                  group->all_reduce(elsewhere, ReduceOp::kSum).wait();
                }),
                AllOf(HasSubstr("on GPU 3"), HasSubstr("next:")));
  });
}

TEST_F(Nccl, RefusesTwoRanksOnOneGpuAndOneThatIsNotThere) {
  run(2, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(
        error_text(
            [&] { group->all_reduce(on_gpu(elements, 1), ReduceOp::kSum); }),
        AllOf(HasSubstr("rank 0 and rank 1 use one GPU"), HasSubstr("next:")));
  });
  run(1, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(error_text([&] {
                  group->all_reduce(on_gpu(elements, 4), ReduceOp::kSum);
                }),
                AllOf(HasSubstr("no GPU 4: this process sees 4"),
                      HasSubstr("CUDA_VISIBLE_DEVICES")));
  });
}

TEST_F(Nccl, DoesNotMeetWhoHasGivenUp) {
  run(3, [&](const Group& group) {
    if (group->rank() == 2) return group->abort("planted");
    Floats elements = numbers(group);
    EXPECT_THAT(
        error_text([&] {
          group->all_reduce(on_gpu(elements, group), ReduceOp::kSum).wait();
        }),
        AllOf(HasSubstr("rank 2"), HasSubstr("planted")));
  });
}

TEST_F(Nccl, SaysWhatTheDriverSays) {
  fake_.lose_driver("too old for CUDA 13.0");
  run(1, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(error_text([&] {
                  group->all_reduce(on_gpu(elements, 0), ReduceOp::kSum);
                }),
                AllOf(HasSubstr("no GPU can be used"),
                      HasSubstr("too old for CUDA 13.0")));
  });
}

TEST_F(Nccl, MakesGroupsOfRanksThatDoNotDisturbEachOther) {
  run(4, [&](const Group& group) {
    Floats all = numbers(group);
    const auto half = split(*group, {.color = group->rank() % 2});
    half->core().set_device_backend([&](Device) -> std::shared_ptr<Backend> {
      ADD_FAILURE() << "asked for without a buffer on a GPU";
      return nullptr;
    });
    group->all_reduce(on_gpu(all, group), ReduceOp::kSum).synchronize();
    EXPECT_THAT(all, Each(10.0F));
  });
}

TEST_F(Nccl, LeavesNothingBehind) {
  for (const bool fails : {false, true}) {
    run(2, [&](const Group& group) {
      Floats elements = numbers(group);
      for (int i = 0; i < 20; ++i)
        group->all_reduce(on_gpu(elements, group), ReduceOp::kSum).wait();
      if (group->rank() == 1)
        group->isend(on_gpu(elements, group), 0).synchronize();
      else
        group->irecv(on_gpu(elements, group), 1).synchronize();
      if (fails) group->abort("on purpose");
    });
    EXPECT_EQ(fake_.alive(), FakeGpu::Alive()) << fails;
  }
}

}  // namespace
}  // namespace lockstep
