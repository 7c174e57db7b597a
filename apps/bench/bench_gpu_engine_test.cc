// `lockstep bench` on GPUs, with a fake of CUDA and NCCL that executes
// everything late: see src/comm/testing/fake_gpu/fake_gpu.h.
#include "apps/bench/bench_gpu_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/bench_measure.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/fake_gpu/fake_gpu.h"
#include "src/comm/testing/gpu_ranks.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using Group = std::shared_ptr<ProcessGroup>;

class BenchOnGpus : public testing::Test {
 protected:
  void run(int ranks, const RankBody& body) {
    run_gpu_ranks(fake_.table(), ranks, body);
  }
  // The device of a rank.
  Gpu gpu(const Group& group) const { return {fake_.table(), group->rank()}; }

  FakeGpu fake_{
      {.devices = 3, .threads = FakeGpuOptions::Threads::kKnowWhatAnySaw}};
};

void measure_every_collective(Engine& engine, std::size_t bytes) {
  for (const auto name : kCollectiveNames) {
    const BenchCollective collective = find_collective(name).value();
    if (collective == BenchCollective::kBarrier) continue;
    if (collective == BenchCollective::kSendRecv && engine.size() == 1)
      continue;
    const Timings timings = measure_collective(
        engine, {.collective = collective, .bytes = bytes}, {.rounds = 1});
    EXPECT_EQ(timings.rounds, 1);
    EXPECT_EQ(timings.calls, GpuEngine::kCallsInARow);
  }
}

TEST_F(BenchOnGpus, EveryCollectiveIsVerifiedOnEveryNumberOfRanks) {
  for (const int ranks : {1, 2, 3})
    run(ranks, [&](const Group& group) {
      GpuEngine engine(group, gpu(group));
      measure_every_collective(engine, 1);
      measure_every_collective(engine, 5000);
    });
  EXPECT_THAT(fake_.violations(), IsEmpty());
}

TEST_F(BenchOnGpus, EveryReductionOnEveryTypeIsVerifiedOrRefused) {
  run(2, [&](const Group& group) {
    GpuEngine engine(group, gpu(group));
    for (const DataType type : kAllDataTypes)
      for (const ReduceOp op : kAllReductions) {
        if (!is_defined(op, type)) continue;
        const auto measure = [&] {
          measure_collective(engine, {.type = type, .op = op, .bytes = 300},
                             {.rounds = 1});
        };
        const bool bitwise = op == ReduceOp::kBand || op == ReduceOp::kBor ||
                             op == ReduceOp::kBxor;
        EXPECT_THAT(error_text(measure),
                    HasSubstr(bitwise ? "\"nccl\" cannot do" : "no error"));
      }
  });
  EXPECT_THAT(fake_.violations(), IsEmpty());
}

// Behaves like a group, except for the fault that a test injects.
class BrokenGpuEngine : public GpuEngine {
 public:
  using GpuEngine::GpuEngine;

  std::function<void(const CollectiveCall&)> sabotage;

  void run(const CollectiveCall& call) override {
    GpuEngine::run(call);
    sabotage(call);
  }
  int run_timed(const CollectiveCall& call) override {
    const int calls = GpuEngine::run_timed(call);
    sabotage(call);
    return calls;
  }
};

TEST_F(BenchOnGpus, OneWrongElementOnADeviceIsNoticed) {
  const auto measure = [&](const Group& group) {
    BrokenGpuEngine engine(group, gpu(group));
    engine.sabotage = [&](const CollectiveCall& call) {
      constexpr std::size_t kPlace = 700;
      engine.write(
          call.output + kPlace * sizeof(float), sizeof(float),
          [](std::byte* element) { *reinterpret_cast<float*>(element) = 77; });
    };
    measure_collective(engine, {.bytes = 8192}, {.rounds = 1});
  };
  EXPECT_THAT(error_text<InternalError>([&] { run(2, measure); }),
              HasSubstr("element 700 of the result is 77"));
}

// After each call the output holds the first call's result.
class RepeatingGpuEngine : public BrokenGpuEngine {
 public:
  RepeatingGpuEngine(const Group& group, const Gpu& gpu, std::size_t bytes)
      : BrokenGpuEngine(group, gpu), first_(bytes) {
    sabotage = [this](const CollectiveCall& call) {
      if (++calls == 1) return keep(call.output);
      write(call.output, first_.size(), [&](std::byte* output) {
        std::copy(first_.begin(), first_.end(), output);
      });
    };
  }

  int calls = 0;

 private:
  void keep(const std::byte* result) {
    read(result, first_.size(), [&](const std::byte* output) {
      std::copy_n(output, first_.size(), first_.begin());
    });
  }

  std::vector<std::byte> first_;
};

TEST_F(BenchOnGpus, AResultThatIsLeftFromAnEarlierRoundIsNoticed) {
  constexpr std::size_t kBytes = 8192;
  int calls = 0;
  const auto measure = [&](const Group& group) {
    RepeatingGpuEngine engine(group, gpu(group), kBytes);
    try {
      measure_collective(
          engine, {.collective = BenchCollective::kAllGather, .bytes = kBytes},
          {.rounds = 2});
    } catch (...) {
      calls = engine.calls;
      throw;
    }
  };
  EXPECT_THAT(error_text<InternalError>([&] { run(1, measure); }),
              HasSubstr("of the result"));
  EXPECT_EQ(calls, 5);
}

TEST_F(BenchOnGpus, ATimedCallEndsWhenTheDeviceHasCarriedItOut) {
  run(2, [&](const Group& group) {
    GpuEngine engine(group, gpu(group));
    constexpr std::size_t kCount = 100;
    const std::size_t bytes = kCount * sizeof(float);
    const auto memory = engine.allocate(bytes, Engine::Memory::kShared);
    const CollectiveCall call{.collective = BenchCollective::kAllReduce,
                              .output = memory.get(),
                              .count = kCount};
    // A violation, unless the host knows that the call has ended.
    engine.run(call);
    fake_.host_reads(memory.get(), bytes);
    engine.run_timed(call);
    fake_.host_reads(memory.get(), bytes);
  });
  EXPECT_THAT(fake_.violations(), IsEmpty());
}

TEST_F(BenchOnGpus, AFullDeviceIsNamedWithTheRankAndTheBytes) {
  run(1, [&](const Group& group) {
    GpuEngine engine(group, gpu(group));
    fake_.set_memory(FakeGpu::Memory::kNone);
    for (const auto memory : {Engine::Memory::kShared, Engine::Memory::kPlain})
      EXPECT_THAT(
          error_text<SystemError>([&] { engine.allocate(4096, memory); }),
          AllOf(HasSubstr("rank 0 of 1: GPU 0"), HasSubstr("4096 bytes"),
                HasSubstr("--bytes"), HasSubstr("nvidia-smi")));
  });
}

TEST_F(BenchOnGpus, NothingIsLeftOnTheDevices) {
  run(2, [&](const Group& group) {
    GpuEngine engine(group, gpu(group));
    for (const auto memory : {Engine::Memory::kShared, Engine::Memory::kPlain})
      measure_collective(engine,
                         {.collective = BenchCollective::kAllToAll,
                          .memory = memory,
                          .bytes = 100},
                         {.rounds = 1});
  });
  EXPECT_EQ(fake_.alive(), FakeGpu::Alive{});
}

}  // namespace
}  // namespace lockstep
