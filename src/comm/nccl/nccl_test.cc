// Tests the GPU backend on a fake of CUDA and NCCL that runs every task late
// and detects unordered accesses (src/comm/testing/fake_gpu/fake_gpu.h), or on
// real GPUs (src/comm/testing/gpu_ranks.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/operation/backend.h"
#include "src/comm/testing/fake_gpu/fake_gpu_table.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<float>;

constexpr std::size_t kCount = 6;
constexpr std::size_t kBytes = kCount * sizeof(float);
// Of a message that NCCL cannot send before it is received.
constexpr std::size_t kLong = std::size_t{1} << 22;

// As if they were on that device.
Buffer on_gpu(Floats& elements, int device) {
  Buffer buffer = view(elements);
  buffer.device = {DeviceKind::kCuda, device};
  return buffer;
}

Floats numbers(const Group& group, std::size_t count = kCount) {
  return Floats(count, static_cast<float>(group->rank() + 1));
}

Work sum_up(const DeviceBlock& memory, const Group& group) {
  return group->all_reduce(memory.floats(), ReduceOp::kSum);
}

class Nccl : public GpuRanks {
 protected:
  // A rank's numbers on its device.
  DeviceBlock on_device(const Group& group, std::size_t count = kCount) {
    DeviceBlock made(gpu_of(group), count * sizeof(float));
    write(made, numbers(group, count));
    return made;
  }
  void copy(const DeviceBlock& to, const DeviceBlock& from,
            const GpuStream& stream) {
    LockstepGpuOutcome outcome{};
    ASSERT_EQ(
        table().copy(to.data(), from.data(), kBytes, stream.get(), &outcome),
        kGpuDone)
        << outcome.text;
  }
  static void await(const Gpu& gpu, const GpuStream& stream) {
    GpuEvent end(gpu);
    end.record(stream.get());
    while (!end.happened()) {
    }
  }
};

TEST_F(Nccl, BeginsWhenTheCallersStreamHasComeToIt) {
  run(2, [&](const Group& group) {
    const Gpu gpu = gpu_of(group);
    const GpuScope scope(gpu);
    const GpuStream stream(gpu);
    const DeviceBlock source = on_device(group), sums(gpu, kBytes),
                      result(gpu, kBytes);
    // The stream copies the sums' input in and their output out.
    copy(sums, source, stream);
    group->all_reduce(sums.floats(), ReduceOp::kSum, {.stream = stream.get()})
        .wait();
    copy(result, sums, stream);
    await(gpu, stream);
    EXPECT_THAT(read(result), Each(3.0F));
  });
}

TEST_F(Nccl, LetsAnotherStreamWaitToo) {
  run(2, [&](const Group& group) {
    const Gpu gpu = gpu_of(group);
    const GpuScope scope(gpu);
    const GpuStream other(gpu);
    const DeviceBlock sums = on_device(group), result(gpu, kBytes);
    const Work work = sum_up(sums, group);
    work.order_before(other.get());
    copy(result, sums, other);
    await(gpu, other);
    EXPECT_THAT(read(result), Each(3.0F));
    work.synchronize();
  });
}

TEST_F(Nccl, DoesNotKeepTheHostForARankThatIsLate) {
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
    const DeviceBlock warm = on_device(group), sums = on_device(group);
    sum_up(warm, group).synchronize();
    if (group->rank() == 1) beside->barrier().wait();  // rank 0 has waited
    const Work work = sum_up(sums, group);
    work.wait();
    if (group->rank() == 0) {
      EXPECT_EQ(work.missing(), std::vector<int>{1});
      beside->barrier().wait();
    }
    work.synchronize();
    EXPECT_THAT(read(sums), Each(3.0F));
  });
}

TEST_F(Nccl, TakesMoreThanADeviceIsGivenAtOnce) {
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
    const std::vector<std::int64_t> ones(500, 1);
    const DeviceBlock elements = on_device(group, ones.size());
    const DeviceBlock first = on_device(group);  // its ranks connect
    std::vector<Work> works;
    sum_up(first, group).synchronize();
    if (group->rank() == 1) beside->barrier().wait();  // rank 0 has given all
    for (const Buffer& one : split(elements.floats(), ones))
      works.push_back(group->all_reduce(one, ReduceOp::kSum));
    if (group->rank() == 0) beside->barrier().wait();
    for (const Work& work : works) work.synchronize();
    EXPECT_THAT(read(elements), Each(3.0F));
  });
}

TEST_F(Nccl, SharesAGroupWithBuffersOfTheCpu) {
  run(3, [&](const Group& group) {
    for (int i = 0; i < 5; ++i) {
      const DeviceBlock of_gpu = on_device(group);
      Floats of_cpu = numbers(group);
      const Work gpu = sum_up(of_gpu, group);
      group->all_reduce(view(of_cpu), ReduceOp::kSum).wait();
      EXPECT_THAT(of_cpu, Each(6.0F));
      gpu.synchronize();
      EXPECT_THAT(read(of_gpu), Each(6.0F));
    }
    group->barrier().wait();
  });
}

TEST_F(Nccl, TellsAllRanksThatTheyCalledDifferentOperations) {
  run(3, [&](const Group& group) {
    const DeviceBlock elements = on_device(group, group->rank() == 2 ? 5 : 4);
    EXPECT_THAT(
        error_text<Mismatch>([&] { sum_up(elements, group).synchronize(); }),
        AllOf(HasSubstr("4 x float32"), HasSubstr("5 x float32"),
              HasSubstr("rank 2")));
    // The group is unusable afterwards.
    EXPECT_THAT(error_text<Error>([&] { sum_up(elements, group).wait(); }),
                HasSubstr("5 x float32"));
  });
}

TEST_F(Nccl, TellsAllRanksOfCountsThatDoNotFit) {
  run(2, [&](const Group& group) {
    // Rank 0 has 4 for rank 1, which expects 3.
    const std::vector<std::int64_t> counts{3, group->rank() == 0 ? 4 : 3};
    const DeviceBlock in = on_device(group);
    const DeviceBlock out =
        on_device(group, static_cast<std::size_t>(3 + counts[1]));
    const std::vector<Buffer> outputs =
        split(in.floats(), std::vector<std::int64_t>{3, 3});
    const std::vector<Buffer> inputs = split(out.floats(), counts);
    EXPECT_THAT(error_text<Mismatch>([&] {
                  group->all_to_all_v(inputs, outputs).synchronize();
                }),
                HasSubstr("all_to_all"));
  });
}

TEST_F(Nccl, TellsBothRanksOfAMessageThatDoesNotFit) {
  run(2, [&](const Group& group) {
    const DeviceBlock elements = on_device(group, group->rank() == 0 ? 6 : 5);
    EXPECT_THAT(error_text<Error>([&] {
                  if (group->rank() == 0) {
                    group->isend(elements.floats(), 1).synchronize();
                    group->irecv(elements.floats(), 1).synchronize();
                  } else {
                    group->irecv(elements.floats(), 0).synchronize();
                  }
                }),
                AllOf(HasSubstr("6 x float32"), HasSubstr("5 x float32")));
  });
}

TEST_F(Nccl, SaysWhoseMessageWasReceived) {
  // Lives until the groups are left, and so until the devices are done.
  std::vector<std::optional<DeviceBlock>> memory(2);
  run(2, [&](const Group& group) {
    const Buffer buffer = memory[static_cast<std::size_t>(group->rank())]
                              .emplace(gpu_of(group), kBytes)
                              .floats();
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
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
    const DeviceBlock warm = on_device(group), sums = on_device(group);
    sum_up(warm, group).synchronize();
    const auto reduce = [&](std::optional<std::chrono::nanoseconds> timeout) {
      group->all_reduce(sums.floats(), ReduceOp::kSum, {.timeout = timeout})
          .synchronize();
    };
    if (group->rank() == 0) {
      EXPECT_THAT(
          error_text<Timeout>([&] { reduce(200ms); }),
          AllOf(HasSubstr("all_reduce #2 (sum, 6 x float32) timed out after"),
                HasSubstr("GPU 0"), HasSubstr("missing: rank 1"),
                HasSubstr("next:")));
    }
    beside->barrier().wait();
    if (group->rank() == 1) {
      EXPECT_THAT(error_text<PeerFailure>([&] { reduce({}); }),
                  HasSubstr("timed out"));
    }
  });
}

TEST_F(Nccl, EndsAtItsDeadlineThoughTheHostDoesNotWait) {
  run(2, [&](const Group& group) {
    const auto beside = group_beside(*group);
    const DeviceBlock warm = on_device(group), sums = on_device(group);
    sum_up(warm, group).synchronize();
    if (group->rank() == 0) {
      const Work work =
          group->all_reduce(sums.floats(), ReduceOp::kSum, {.timeout = 100ms});
      work.wait();
      while (!work.done()) {
      }
      EXPECT_THAT(error_text<Timeout>([&] {
                    std::ignore = sum_up(sums, group);
                    work.wait();
                  }),
                  HasSubstr("all_reduce #2"));
    }
    beside->barrier().wait();
  });
}

TEST_F(Nccl, EndsMessagesToARankThatWasAborted) {
  run(2, [&](const Group& group) {
    const DeviceBlock elements = on_device(group, kLong);
    const Buffer buffer = elements.floats();
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
    const DeviceBlock warm = on_device(group), sums = on_device(group);
    sum_up(warm, group).synchronize();
    group->barrier().wait();  // complete on all ranks
    if (group->rank() == 1) return group->abort("out of ideas");
    try {
      sum_up(sums, group).synchronize();
    } catch (const PeerFailure& failure) {
      EXPECT_EQ(failure.rank(), 1);
    }
    EXPECT_THAT(
        error_text<PeerFailure>([&] { sum_up(sums, group).synchronize(); }),
        AllOf(HasSubstr("rank 1"), HasSubstr("out of ideas")));
  });
}

TEST_F(Nccl, EndsOnAllRanksWhenTheLibraryFailsOnOne) {
  if (!is_fake()) GTEST_SKIP() << "only the fake fails when told";
  run(2, [&](const Group& group) {
    const DeviceBlock warm = on_device(group), sums = on_device(group);
    sum_up(warm, group).synchronize();
    group->barrier().wait();
    if (group->rank() == 0)
      fake_.fail_comms_of(0, kGpuPeerLost, "a cable was pulled");
    group->barrier().wait();
    EXPECT_THAT(
        error_text<Error>([&] { sum_up(sums, group).synchronize(); }),
        AllOf(HasSubstr("all_reduce #4"), HasSubstr("a cable was pulled")));
  });
}

TEST_F(Nccl, PassesMessagesInAnyOrderWithoutDeadlock) {
  run(3, [&](const Group& group) {
    const int next = (group->rank() + 1) % 3, before = (group->rank() + 2) % 3;
    for (int i = 0; i < 4; ++i) {
      const DeviceBlock mine = on_device(group), theirs = on_device(group),
                        sums = on_device(group);
      std::vector<Work> works;
      const auto send = [&] {
        works.push_back(group->isend(mine.floats(), next));
      };
      const auto receive = [&] {
        works.push_back(group->irecv(theirs.floats(), before));
      };
      const auto reduce = [&] { works.push_back(sum_up(sums, group)); };
      // Each rank in another order.
      if (group->rank() == 0) send(), reduce(), receive();
      if (group->rank() == 1) reduce(), send(), receive();
      if (group->rank() == 2) receive(), send(), reduce();
      for (const Work& work : works) work.synchronize();
      EXPECT_THAT(read(theirs), Each(static_cast<float>(before + 1)));
      EXPECT_THAT(read(sums), Each(6.0F));
    }
  });
}

TEST_F(Nccl, RefusesWhatNcclHasNot) {
  run(2, [&](const Group& group) {
    const DeviceBlock elements = on_device(group);
    const Buffer buffer = elements.floats();
    const auto peer = 1 - group->rank();
    EXPECT_THAT(
        error_text([&] { std::ignore = group->isend(buffer, peer, 7); }),
        HasSubstr("\"nccl\" cannot do send"));
    EXPECT_THAT(
        error_text([&] { std::ignore = group->irecv(buffer, kAnySource); }),
        HasSubstr("\"nccl\" cannot do receive"));
    std::vector<std::int32_t> bits(4);
    Buffer of_bits = view(bits);
    of_bits.device = buffer.device;
    EXPECT_THAT(error_text([&] {
                  std::ignore = group->all_reduce(of_bits, ReduceOp::kBxor);
                }),
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

TEST_F(Nccl, RefusesTwoRanksOnOneGpu) {
  if (!is_fake()) GTEST_SKIP() << "only the fake does not let ranks share GPUs";
  run(2, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(
        error_text([&] {
          std::ignore = group->all_reduce(on_gpu(elements, 1), ReduceOp::kSum);
        }),
        AllOf(HasSubstr("rank 0 and rank 1 use one GPU"), HasSubstr("next:")));
  });
}

// Of the process, since the table's functions are C functions.
std::vector<LockstepGpuSum> asked_of_nccl;

TEST_F(Nccl, AsksForTheSumWhereOneRankAverages) {
  if (!is_fake()) GTEST_SKIP() << "only the fake tells";
  asked_of_nccl.clear();
  LockstepGpuTable watched = table();
  watched.call = [](LockstepGpuComm* comm, const LockstepGpuCall* call,
                    LockstepGpuStream* stream, LockstepGpuOutcome* outcome) {
    asked_of_nccl.push_back(call->sum);
    return fake_gpu_table().call(comm, call, stream, outcome);
  };
  run_gpu_ranks(watched, 1, [&](const Group& group) {
    Floats elements{1, 2, 3};
    group->all_reduce(on_gpu(elements, 0), ReduceOp::kAverage).synchronize();
    EXPECT_EQ(elements, (Floats{1, 2, 3}));
  });
  EXPECT_THAT(asked_of_nccl, ElementsAre(kGpuSum));
}

TEST_F(Nccl, RefusesAGpuThatIsNotThere) {
  const std::string gpus = std::to_string(Gpu::count(table()));
  run(1, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(
        error_text([&] {
          std::ignore = group->all_reduce(on_gpu(elements, std::stoi(gpus)),
                                          ReduceOp::kSum);
        }),
        AllOf(HasSubstr("no GPU " + gpus + ": this process sees " + gpus),
              HasSubstr("CUDA_VISIBLE_DEVICES")));
  });
}

TEST_F(Nccl, DoesNotMeetWhoHasGivenUp) {
  run(3, [&](const Group& group) {
    if (group->rank() == 2) return group->abort("planted");
    const DeviceBlock elements = on_device(group);
    EXPECT_THAT(error_text([&] { sum_up(elements, group).wait(); }),
                AllOf(HasSubstr("rank 2"), HasSubstr("planted")));
  });
}

TEST_F(Nccl, SaysWhatTheDriverSays) {
  if (!is_fake()) GTEST_SKIP() << "only the fake loses its driver";
  fake_.lose_driver("too old for CUDA 13.0");
  run(1, [&](const Group& group) {
    Floats elements = numbers(group);
    EXPECT_THAT(error_text([&] {
                  std::ignore =
                      group->all_reduce(on_gpu(elements, 0), ReduceOp::kSum);
                }),
                AllOf(HasSubstr("no GPU can be used"),
                      HasSubstr("too old for CUDA 13.0")));
  });
}

TEST_F(Nccl, MakesGroupsOfRanksThatDoNotDisturbEachOther) {
  run(4, [&](const Group& group) {
    const DeviceBlock all = on_device(group);
    const auto half = split(*group, {.color = group->rank() % 2});
    half->core().set_device_backend([&](Device) -> std::shared_ptr<Backend> {
      ADD_FAILURE() << "asked for without a buffer on a GPU";
      return nullptr;
    });
    sum_up(all, group).synchronize();
    EXPECT_THAT(read(all), Each(10.0F));
  });
}

TEST_F(Nccl, LeavesNothingBehind) {
  if (!is_fake()) GTEST_SKIP() << "only the fake counts what is left";
  for (const bool fails : {false, true}) {
    run(2, [&](const Group& group) {
      const DeviceBlock elements = on_device(group);
      for (int i = 0; i < 20; ++i) sum_up(elements, group).wait();
      if (group->rank() == 1)
        group->isend(elements.floats(), 0).synchronize();
      else
        group->irecv(elements.floats(), 1).synchronize();
      if (fails) group->abort("on purpose");
    });
    EXPECT_EQ(fake_.alive(), FakeGpu::Alive()) << fails;
  }
}

}  // namespace
}  // namespace lockstep
