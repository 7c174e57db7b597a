// Tests collectives that are captured in a graph, on a fake of CUDA and NCCL:
// the plug-in's table begins no capture. On a card, captures are LibTorch's:
// CapturedPassOnCuda (src/torch/device/captured_pass_test.cc) tests them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/comm/group/group_core.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/testing/fake_gpu/fake_gpu_graph.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;
using Floats = std::vector<float>;

constexpr std::size_t kElements = 6;
constexpr std::size_t kBufferBytes = kElements * sizeof(float);

void await(const std::function<bool()>& condition) {
  const Deadline deadline(60s);
  while (!condition() && !deadline.expired()) std::this_thread::yield();
  EXPECT_TRUE(condition());
}

// A rank's device, a stream of it, and memory that the graphs use.
class Rank {
 public:
  Rank(FakeGpu& fake, Group its_group)
      : group(std::move(its_group)),
        fake_(fake),
        gpu_(fake.table(), group->rank()),
        scope_(gpu_),
        stream_(gpu_),
        other_(gpu_) {
    // The ranks connect before the first capture.
    all_reduce(elements);
    synchronize();
  }

  Device device() const { return {DeviceKind::kCuda, gpu_.index()}; }
  LockstepGpuStream* stream() const { return stream_.get(); }
  LockstepGpuStream* other_stream() const { return other_.get(); }
  CallOptions options() const { return {.timeout = 60s, .stream = stream()}; }

  Buffer buffer(Floats& memory) const {
    Buffer made = view(memory);
    made.device = device();
    return made;
  }
  void all_reduce(Floats& memory) {
    group->all_reduce(buffer(memory), ReduceOp::kSum, options()).wait();
  }
  void copy(Floats& to, const Floats& from) {
    LockstepGpuOutcome outcome{};
    gpu_.check(fake_.table().copy(to.data(), from.data(), kBufferBytes,
                                  stream(), &outcome),
               outcome, "copy");
  }
  void synchronize() {
    GpuEvent event(gpu_);
    event.record(stream());
    while (!event.happened()) {
    }
  }

  std::shared_ptr<FakeGpuGraph> begin_unattached() {
    return std::make_shared<FakeGpuGraph>(fake_, device(), stream());
  }
  std::shared_ptr<FakeGpuGraph> begin_capture() {
    auto graph = begin_unattached();
    group->core().attach(graph, options());
    return graph;
  }
  // elements = the sum of input over ranks, repeated `times` times; result =
  // elements.
  std::shared_ptr<FakeGpuGraph> capture(int times = 1) {
    auto graph = begin_capture();
    copy(elements, input);
    for (int i = 0; i < times; ++i) all_reduce(elements);
    copy(result, elements);
    graph->end_capture();
    return graph;
  }
  // Ends the capture in any state.
  static void give_up(FakeGpuGraph& graph) {
    try {
      graph.end_capture();
    } catch (const Error&) {
      // The test expects the error.
    }
  }
  // Fills the input, as another library would.
  void set_input(float value) {
    synchronize();
    fake_.host_writes(input.data(), kBufferBytes);
    input.assign(kElements, value);
  }
  const Floats& read_result() {
    synchronize();
    fake_.host_reads(result.data(), kBufferBytes);
    return result;
  }

  const Group group;
  Floats input = Floats(kElements), elements = Floats(kElements),
         result = Floats(kElements, -1);

 private:
  FakeGpu& fake_;
  const Gpu gpu_;
  const GpuScope scope_;
  const GpuStream stream_, other_;
};

class NcclGraph : public ::testing::Test {
 protected:
  void SetUp() override {
    if (tests_use_real_gpus()) GTEST_SKIP() << "only the fake can capture here";
  }
  void run(int ranks, const std::function<void(Rank& rank)>& body) {
    run_gpu_ranks(fake_.table(), ranks, [&](const Group& group) {
      Rank rank(fake_, group);
      body(rank);
    });
  }
  void TearDown() override {
    EXPECT_THAT(fake_.violations(), IsEmpty());
    EXPECT_EQ(fake_.alive(), FakeGpu::Alive());
  }

  FakeGpu fake_{
      {.devices = 4, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

TEST_F(NcclGraph, GivesTheSumsOfWhatIsThereAtEachReplay) {
  for (const int ranks : {1, 2, 4})
    run(ranks, [&](Rank& rank) {
      const auto graph = rank.capture();
      EXPECT_EQ(graph->contents().operations, 1U);
      EXPECT_THAT(rank.read_result(), Each(-1.0F)) << "it was carried out";
      const auto own = static_cast<float>(rank.group->rank() + 1);
      const auto sum = static_cast<float>(ranks * (ranks + 1) / 2);
      for (const float factor : {1.0F, 2.0F, 5.0F}) {
        rank.set_input(factor * own);
        rank.group->core().replay(graph, rank.options()).wait();
        EXPECT_THAT(rank.read_result(), Each(factor * sum));
      }
    });
}

TEST_F(NcclGraph, IsInOrderWithTheStreamAndWithOtherCollectives) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.capture();
    Floats ones(kElements, 1), doubled(kElements), between(kElements);
    for (int i = 0; i < 5; ++i) {
      rank.copy(rank.input, ones);
      const Work first = rank.group->core().replay(graph, rank.options());
      first.wait();
      rank.copy(between, rank.elements);
      const Work sum = rank.group->all_reduce(rank.buffer(rank.elements),
                                              ReduceOp::kSum, rank.options());
      sum.wait();
      rank.copy(doubled, rank.elements);
      const Work again = rank.group->core().replay(graph, rank.options());
      again.wait();
      again.synchronize();
      fake_.host_reads(between.data(), kBufferBytes);
      fake_.host_reads(doubled.data(), kBufferBytes);
      EXPECT_THAT(between, Each(2.0F));
      EXPECT_THAT(doubled, Each(4.0F));
      EXPECT_THAT(rank.read_result(), Each(2.0F));
    }
  });
}

TEST_F(NcclGraph, LeavesOutWhatIsGivenToAnotherStreamMeanwhile) {
  run(2, [&](Rank& rank) {
    Floats beside(kElements, 1);
    const auto graph = rank.begin_capture();
    rank.all_reduce(rank.elements);
    const Work work =
        rank.group->all_reduce(rank.buffer(beside), ReduceOp::kSum,
                               {.timeout = 60s, .stream = rank.other_stream()});
    rank.all_reduce(rank.elements);
    graph->end_capture();
    work.synchronize();
    fake_.host_reads(beside.data(), kBufferBytes);
    EXPECT_THAT(beside, Each(2.0F));
    EXPECT_EQ(graph->contents().operations, 2U);
    rank.set_input(0);
    rank.group->core().replay(graph, rank.options()).synchronize();
    EXPECT_THAT(beside, Each(2.0F));
  });
}

TEST_F(NcclGraph, ForgetsACaptureThatWasGivenUp) {
  run(2, [&](Rank& rank) {
    {
      const auto given_up = rank.begin_capture();
      rank.all_reduce(rank.elements);
    }
    const auto graph = rank.capture();
    EXPECT_EQ(graph->contents().operations, 1U);
    rank.set_input(3);
    rank.group->core().replay(graph, rank.options()).wait();
    EXPECT_THAT(rank.read_result(), Each(6.0F));
  });
}

TEST_F(NcclGraph, IsLaunchedAloneWhereTheGroupHasNothingInIt) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    rank.copy(rank.result, rank.input);
    graph->end_capture();
    rank.set_input(7);
    rank.group->core().replay(graph, rank.options()).wait();
    EXPECT_THAT(rank.read_result(), Each(7.0F));
  });
}

TEST_F(NcclGraph, TellsAllRanksThatTheirGraphsDiffer) {
  run(2, [&](Rank& rank) {
    const auto once = rank.capture(1), twice = rank.capture(2);
    EXPECT_THAT(
        error_text<Mismatch>([&] {
          rank.group->core()
              .replay(rank.group->rank() == 0 ? once : twice, rank.options())
              .synchronize();
        }),
        AllOf(HasSubstr("a graph of 1 operations"),
              HasSubstr("a graph of 2 operations"), HasSubstr("next:")));
  });
}

TEST_F(NcclGraph, TellsAllRanksThatTheyReplayGraphsOfDifferentCaptures) {
  run(2, [&](Rank& rank) {
    const auto one = rank.capture(), other = rank.capture();
    EXPECT_THAT(error_text<Mismatch>([&] {
                  rank.group->core()
                      .replay(rank.group->rank() == 0 ? one : other,
                              rank.options())
                      .synchronize();
                }),
                HasSubstr("differs: the operations that were captured"));
  });
}

TEST_F(NcclGraph, TellsAllRanksThatSomeCaptureWhatOthersCarryOut) {
  run(2, [&](Rank& rank) {
    std::shared_ptr<FakeGpuGraph> graph;
    if (rank.group->rank() == 0) graph = rank.begin_capture();
    const Work work = rank.group->all_reduce(rank.buffer(rank.elements),
                                             ReduceOp::kSum, rank.options());
    // Only its stream waits for a captured operation.
    const auto finish = [&] {
      if (!graph) return work.synchronize();
      await([&] { return work.done(); });
      work.wait();
    };
    EXPECT_THAT(error_text<Mismatch>(finish),
                AllOf(HasSubstr("captured by ranks 0, carried out by ranks 1"),
                      HasSubstr("next:")));
    if (graph) Rank::give_up(*graph);
  });
}

TEST_F(NcclGraph, TellsWhoDoesNotReplay) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.capture();
    if (rank.group->rank() == 1) return;
    CallOptions options = rank.options();
    options.timeout = 300ms;
    EXPECT_THAT(error_text<Error>([&] {
                  rank.group->core().replay(graph, options).synchronize();
                }),
                HasSubstr("rank 1"));
    EXPECT_TRUE(graph->ended());
  });
}

TEST_F(NcclGraph, EndsOnEveryRankWhenADeviceHangs) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.capture();
    rank.group->barrier().wait();
    if (rank.group->rank() == 1) fake_.kill(1);
    rank.group->barrier().wait();
    CallOptions options = rank.options();
    options.timeout = 300ms;
    EXPECT_NE(error_text<Error>([&] {
                rank.group->core().replay(graph, options).synchronize();
              }),
              "");
    EXPECT_TRUE(graph->ended());
    EXPECT_NE(error_text<Error>([&] {
                rank.group->core().replay(graph, rank.options()).synchronize();
              }),
              "");
  });
}

TEST_F(NcclGraph, IsOverAtOnceWhereTheGroupEndsWithinItsCapture) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    rank.all_reduce(rank.elements);
    const Work last = rank.group->all_reduce(rank.buffer(rank.elements),
                                             ReduceOp::kSum, rank.options());
    last.wait();
    rank.group->barrier().wait();
    rank.group->abort("the test ends it");
    EXPECT_THAT(error_text<Error>([&] { last.wait(); }),
                HasSubstr("the test ends it"));
    EXPECT_THAT(error_text<Error>([&] { rank.all_reduce(rank.elements); }),
                HasSubstr("the test ends it"));
    EXPECT_THAT(error_text<Error>(
                    [&] { rank.group->core().attach(graph, rank.options()); }),
                HasSubstr("the test ends it"));
    EXPECT_TRUE(last.done());
    await([&] { return graph->ended(); });
    EXPECT_THAT(error_text<Error>([&] { graph->end_capture(); }),
                AllOf(HasSubstr("is useless"), HasSubstr("next:")));
  });
}

TEST_F(NcclGraph, EndsBeforeTheCommunicatorThatItUses) {
  std::vector<std::shared_ptr<FakeGpuGraph>> graphs(2);
  run(2, [&](Rank& rank) {
    graphs[static_cast<std::size_t>(rank.group->rank())] = rank.capture();
  });
  for (const auto& graph : graphs) EXPECT_TRUE(graph->ended());
}

TEST_F(NcclGraph, RefusesAGraphThatIsNotAttached) {
  run(1, [&](Rank& rank) {
    const auto graph = rank.capture();
    const auto stranger = rank.begin_unattached();
    stranger->end_capture();
    stranger->set_contents({.operations = 1});
    EXPECT_THAT(error_text<InvalidArgument>([&] {
                  rank.group->core().replay(stranger, rank.options()).wait();
                }),
                AllOf(HasSubstr("attach()"), HasSubstr("next:")));
  });
}

TEST_F(NcclGraph, RefusesToBeAttachedWhenNothingIsCaptured) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.capture();
    EXPECT_THAT(error_text<InvalidArgument>(
                    [&] { rank.group->core().attach(graph, rank.options()); }),
                AllOf(HasSubstr("not being captured"), HasSubstr("next:")));
    const auto next = rank.begin_capture();
    EXPECT_THAT(error_text<InvalidArgument>(
                    [&] { rank.group->core().attach(graph, rank.options()); }),
                AllOf(HasSubstr("a group already"), HasSubstr("next:")));
    next->end_capture();
    EXPECT_NE(error_text<InvalidArgument>(
                  [&] { rank.group->core().attach(nullptr); }),
              "");
    EXPECT_NE(error_text<InvalidArgument>(
                  [&] { std::ignore = rank.group->core().replay(nullptr); }),
              "");
  });
}

TEST_F(NcclGraph, RefusesMessages) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    // No rank fails before the other has come.
    rank.group->barrier().wait();
    EXPECT_THAT(error_text<Error>([&] {
                  rank.group
                      ->isend(rank.buffer(rank.elements),
                              1 - rank.group->rank(), 0, rank.options())
                      .wait();
                }),
                AllOf(HasSubstr("only collectives"), HasSubstr("next:")));
    Rank::give_up(*graph);
  });
}

TEST_F(NcclGraph, RefusesCollectivesOfACaptureForWhichNoGraphIsAttached) {
  run(2, [&](Rank& rank) {
    rank.group->barrier().wait();
    const auto graph = rank.begin_unattached();
    EXPECT_THAT(error_text<Error>([&] { rank.all_reduce(rank.elements); }),
                AllOf(HasSubstr("attach() one"), HasSubstr("next:")));
    Rank::give_up(*graph);
  });
}

TEST_F(NcclGraph, SaysThatWhatIsNotOfACaptureWaitsForItsEnd) {
  run(2, [&](Rank& rank) {
    Floats beside(kElements, 1);
    const auto graph = rank.begin_capture();
    rank.all_reduce(rank.elements);
    rank.group->barrier().wait();
    const Work work = rank.group->all_reduce(
        rank.buffer(beside), ReduceOp::kSum,
        {.timeout = 300ms, .stream = rank.other_stream()});
    EXPECT_THAT(error_text<Error>([&] { work.synchronize(); }),
                HasSubstr("end the capture before waiting"));
    Rank::give_up(*graph);
  });
}

TEST_F(NcclGraph, DoesNotLetTheHostWaitForWhatIsOnlyCaptured) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    const Work work = rank.group->all_reduce(rank.buffer(rank.elements),
                                             ReduceOp::kSum, rank.options());
    EXPECT_THAT(error_text<InvalidArgument>([&] { work.synchronize(); }),
                AllOf(HasSubstr("captured"), HasSubstr("next:")));
    work.wait();
    graph->end_capture();
    work.wait();  // nothing is left to wait for
  });
}

TEST_F(NcclGraph, IsNotMadeToWaitByALookAtAWork) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    const Work work = rank.group->all_reduce(rank.buffer(rank.elements),
                                             ReduceOp::kSum, rank.options());
    await([&] { return work.done(); });
    EXPECT_THAT(error_text<InvalidArgument>([&] { graph->end_capture(); }),
                HasSubstr("has not waited for"));
  });
}

TEST_F(NcclGraph, SaysWhatWasNotWaitedFor) {
  run(2, [&](Rank& rank) {
    const auto graph = rank.begin_capture();
    const Work work = rank.group->all_reduce(rank.buffer(rank.elements),
                                             ReduceOp::kSum, rank.options());
    EXPECT_THAT(error_text<InvalidArgument>([&] { graph->end_capture(); }),
                HasSubstr("has not waited for"));
  });
}

}  // namespace
}  // namespace lockstep
