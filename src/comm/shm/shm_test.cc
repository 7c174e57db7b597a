#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <latch>
#include <numeric>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/store/store.h"
#include "src/base/testing/own_resources.h"
#include "src/comm/group/group_core.h"
#include "src/comm/operation/peer_checks.h"
#include "src/comm/reduce/reduce_kernels.h"
#include "src/comm/rendezvous/world.h"
#include "src/comm/testing/run_ranks.h"
#include "src/store/host_address.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

void put(DataType type, float value, std::byte* at) {
  const Float16 half = to_float16(value);
  const BFloat16 brain = to_bfloat16(value);
  if (type == DataType::kFloat32) std::memcpy(at, &value, sizeof value);
  if (type == DataType::kFloat16) std::memcpy(at, &half, sizeof half);
  if (type == DataType::kBFloat16) std::memcpy(at, &brain, sizeof brain);
}

TEST(ReduceKernels, GiveTheSameBitsOnEveryInstructionSet) {
  constexpr std::size_t kCount = 1031;
  for (const DataType type :
       {DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16}) {
    std::vector<std::vector<std::byte>> values(5);
    std::vector<const std::byte*> sources;
    for (std::size_t r = 0; r < values.size(); ++r) {
      values[r].resize(kCount * size_of(type));
      for (std::size_t i = 0; i < kCount; ++i)
        put(type, std::sin(static_cast<float>(r * 7919 + i)) * 100,
            values[r].data() + i * size_of(type));
      sources.push_back(values[r].data());
    }
    for (const ReduceOp op : kAllReductions) {
      if (!is_defined(op, type)) continue;
      std::vector<std::vector<float>> results;
      for (int set = 0; set <= static_cast<int>(best_instruction_set());
           ++set) {
        results.emplace_back(kCount);
        auto* target = reinterpret_cast<std::byte*>(results.back().data());
        reduce_kernel(op, type, static_cast<InstructionSet>(set))(
            sources, std::span(&target, 1), kCount);
      }
      for (const auto& result : results)
        EXPECT_EQ(
            std::memcmp(result.data(), results[0].data(), 1031 * size_of(type)),
            0)
            << name_of(op) << " of " << name_of(type);
    }
  }
}

TEST(SharedMemory, CarriesAsynchronousOperationsOutInOrder) {
  run_ranks("shm", 3, [](std::shared_ptr<ProcessGroup> group) {
    std::vector<std::vector<float>> data;
    std::vector<Work> works;
    for (std::size_t i = 0; i < 50; ++i)
      data.emplace_back(1 + i * 997, static_cast<float>(i));
    for (auto& one : data)
      works.push_back(group->all_reduce(view(one), ReduceOp::kSum));
    for (std::size_t i = works.size(); i-- > 0;) works[i].wait(1min);
    for (std::size_t i = 0; i < data.size(); ++i)
      EXPECT_EQ(data[i].back(), 3 * static_cast<float>(i));
  });
}

TEST(SharedMemory, CompletesWhatNobodyWaitsFor) {
  run_ranks("shm", 2, [](std::shared_ptr<ProcessGroup> group) {
    std::vector<float> data(1 << 20, 1);
    const Work work = group->all_reduce(view(data), ReduceOp::kSum);
    while (!work.done()) std::this_thread::yield();
    EXPECT_EQ(data.back(), 2);
  });
}

TEST(SharedMemory, TimeoutSaysWhoIsMissingAndWhatItDidLast) {
  const auto store = open_store("memory:");
  std::string text;
  std::thread other([&] {
    const auto group = make_group("shm", {.name = "g", .rank = 1, .size = 2},
                                  std::make_shared<World>(store, Settings{}));
    group->barrier().wait();
    // Stays in the group without calling operations until rank 0 has given up.
    store->get("given up", 1min);
  });
  const auto group = make_group("shm", {.name = "g", .rank = 0, .size = 2},
                                std::make_shared<World>(store, Settings{}));
  group->barrier().wait();
  std::vector<float> data(10);
  try {
    group->all_reduce(view(data), ReduceOp::kSum, {.timeout = 50ms}).wait();
  } catch (const Timeout& error) {
    text = error.what();
  }
  store->set("given up", {}, 1min);
  other.join();
  EXPECT_NE(text.find("all_reduce #2 (sum, 10 x float32) timed out"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("missing: rank 1 on " + own_host_name() +
                      ", last seen in barrier #1"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("(begun at "), std::string::npos) << text;
  EXPECT_THROW(group->barrier().wait(), Timeout);
}

// Collectives run one after the other: all wait for the ranks that the oldest
// waits for.
TEST(SharedMemory, NamesTheMissingRankForAnOperationBehindOthers) {
  const auto store = open_store("memory:");
  std::thread other([&] {
    const auto group = make_group("shm", {.name = "g", .rank = 1, .size = 2},
                                  std::make_shared<World>(store, Settings{}));
    store->get("given up", 1min);
  });
  const auto group = make_group("shm", {.name = "g", .rank = 0, .size = 2},
                                std::make_shared<World>(store, Settings{}));
  const Work first = group->barrier();
  const Work second = group->barrier();
  EXPECT_EQ(second.missing(), std::vector{1});
  store->set("given up", {}, 1min);
  other.join();
}

// Three ranks, of which rank 2 does nothing until rank 0 has given up, and rank
// 1 waits in `wait` meanwhile. Returns what rank 0's `give_up` throws.
std::string timeout_of_rank_0(const RankBody& give_up, const RankBody& wait) {
  const auto store = open_store("memory:");
  std::string text;
  run_ranks("shm", 3, [&](const std::shared_ptr<ProcessGroup>& group) {
    group->barrier().wait();
    if (group->rank() == 2) store->get("given up", 1min);
    if (group->rank() == 1) {
      store->set("waits", {}, 1min);
      EXPECT_THROW(wait(group), PeerFailure);
    }
    if (group->rank() != 0) return;
    store->get("waits", 1min);
    try {
      give_up(group);
    } catch (const Timeout& error) {
      text = error.what();
    }
    store->set("given up", {}, 1min);
  });
  return text;
}

// A waiting rank must announce its wait, every 50 ms, within the last quarter.
constexpr std::chrono::seconds kLongEnough{6};

void give_up_in_barrier(const std::shared_ptr<ProcessGroup>& group) {
  group->barrier({.timeout = kLongEnough}).wait();
}

void expect_names_rank_2_alone(const std::string& text) {
  EXPECT_NE(text.find("missing: rank 2 "), std::string::npos) << text;
  EXPECT_EQ(text.find("missing: rank 1 "), std::string::npos) << text;
}

TEST(SharedMemory, TimeoutDoesNotNameARankThatSendsToTheLateOne) {
  expect_names_rank_2_alone(timeout_of_rank_0(
      give_up_in_barrier, [](const std::shared_ptr<ProcessGroup>& group) {
        std::vector<float> data(1 << 20, 1);
        group->send(view(data), 2, 0, {.timeout = 1min});
      }));
}

TEST(SharedMemory, TimeoutOfAMessageDoesNotNameARankThatWaitsInACollective) {
  expect_names_rank_2_alone(timeout_of_rank_0(
      [](const std::shared_ptr<ProcessGroup>& group) {
        const Work own_part = group->barrier({.timeout = 1min});
        std::vector<float> data(1);
        group->recv(view(data), 1, 0, {.timeout = kLongEnough});
      },
      [](const std::shared_ptr<ProcessGroup>& group) {
        group->barrier({.timeout = 1min}).wait();
      }));
}

// What a helper thread waits for does not say what holds up its rank.
TEST(SharedMemory, TimeoutNamesARankOfWhichOneThreadWaitsAndAnotherOneIsLate) {
  const std::string text = timeout_of_rank_0(
      give_up_in_barrier, [](const std::shared_ptr<ProcessGroup>& group) {
        std::thread helper([&] {
          std::vector<float> data(1);
          EXPECT_THROW(group->recv(view(data), 2, 0, {.timeout = 1min}),
                       PeerFailure);
        });
        helper.join();
        group->barrier().wait();
      });
  EXPECT_NE(text.find("missing: rank 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("missing: rank 2 "), std::string::npos) << text;
}

TEST(SharedMemory, TimeoutNamesARankThatWaitsForThisRank) {
  const std::string text = timeout_of_rank_0(
      give_up_in_barrier, [](const std::shared_ptr<ProcessGroup>& group) {
        std::vector<float> data(1);
        group->recv(view(data), 0, 0, {.timeout = 1min});
      });
  EXPECT_NE(text.find("missing: rank 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("missing: rank 2 "), std::string::npos) << text;
}

// Ranks that are threads reduce into each other's memory, which remapping
// cannot prevent: a rank that gives up waits for ranks that are writing.
TEST(SharedMemory, NoThreadWritesToABufferAfterItsErrorWasSeen) {
  constexpr int kRanks = 4;
  constexpr std::size_t kCount = 1 << 20;
  std::atomic<int> errors{0};
  for (int turn = 0; turn < 200 && errors < 40; ++turn) {
    std::latch all_ended(kRanks);
    const auto body = [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto block = group->allocate(kCount * sizeof(float));
      auto* const data = reinterpret_cast<float*>(block.get());
      std::fill_n(data, kCount, 1.0f);
      group->barrier().wait();
      const auto timeout = std::chrono::microseconds(100 + 50 * (turn % 40));
      // A rank is late, between not at all and nearly two timeouts.
      const Deadline arrival(timeout * (turn % 8) / 4);
      while (group->rank() == turn % kRanks && !arrival.expired())
        std::this_thread::yield();
      bool failed = false;
      try {
        const Buffer buffer{data, kCount, DataType::kFloat32};
        group->all_reduce(buffer, ReduceOp::kSum, {.timeout = timeout}).wait();
      } catch (const Error&) {
        failed = true;
        ++errors;
        std::fill_n(data, kCount, 7.0f);
      }
      all_ended.arrive_and_wait();
      if (failed) {
        EXPECT_EQ(std::count(data, data + kCount, 7.0f), kCount);
      }
    };
    run_ranks("shm", kRanks, body);
  }
  EXPECT_GT(errors, 0) << "no all_reduce timed out";
}

TEST(SharedMemory, NamesARankThatLeft) {
  const auto store = open_store("memory:");
  std::thread other([&] {
    make_group("shm", {.name = "g", .rank = 1, .size = 2},
               std::make_shared<World>(store, Settings{}));
  });
  const auto group = make_group("shm", {.name = "g", .rank = 0, .size = 2},
                                std::make_shared<World>(store, Settings{}));
  other.join();
  try {
    group->barrier().wait();
    ADD_FAILURE() << "rank 1 was not missed";
  } catch (const PeerFailure& error) {
    EXPECT_EQ(error.rank(), 1);
  }
}

// As a server that has posted a receive from each client: one has finished.
TEST(SharedMemory, AReceiveThatNoThreadWaitsForOutlivesAPeerThatLeft) {
  run_ranks("shm", 3, [](std::shared_ptr<ProcessGroup> group) {
    if (group->rank() == 1) return;
    const std::vector<int> from_zero{1};
    std::vector<int> value(1);
    if (group->rank() == 2) {
      while (value[0] == 0) group->recv(view(value), 0);
      return;
    }
    std::vector<float> unneeded(100);
    const Work receive = group->irecv(view(unneeded), 1);
    // More than two checks of the peers.
    const Deadline enough(4 * kPeerCheckInterval);
    while (!enough.expired()) {
      std::this_thread::yield();
      EXPECT_FALSE(receive.done());
      group->send(view(value), 2);
    }
    group->send(view(from_zero), 2);
  });
}

TEST(SharedMemory, CarriesTheReasonOfAnAbortToTheOthers) {
  const auto store = open_store("memory:");
  std::thread other([&] {
    make_group("shm", {.name = "g", .rank = 1, .size = 2},
               std::make_shared<World>(store, Settings{}))
        ->abort("out of coffee");
  });
  const auto group = make_group("shm", {.name = "g", .rank = 0, .size = 2},
                                std::make_shared<World>(store, Settings{}));
  try {
    group->barrier().wait();
    ADD_FAILURE() << "the abort went unnoticed";
  } catch (const PeerFailure& error) {
    EXPECT_NE(std::string(error.what()).find("out of coffee"),
              std::string::npos);
  }
  other.join();
}

TEST(SharedMemory, GroupsLeaveNothingBehind) {
  const auto round = [] {
    for (int i = 0; i < 20; ++i)
      run_ranks("shm", 3, [](std::shared_ptr<ProcessGroup> group) {
        std::vector<float> data(100'000, 1);
        const Work work = group->all_reduce(view(data), ReduceOp::kSum);
        work.wait();
      });
  };
  round();
  const std::size_t descriptors = count_descriptors();
  const std::size_t threads = count_threads();
  round();
  EXPECT_EQ(count_descriptors(), descriptors);
  EXPECT_EQ(count_threads(), threads);
}

// Small enough for a slot, but in a heap on some ranks.
TEST(SharedMemory, ReducesWhatLiesInHeapsOnSomeRanksAndElsewhereOnOthers) {
  constexpr int kRanks = 3;
  run_ranks("shm", kRanks, [](const std::shared_ptr<ProcessGroup>& group) {
    for (int root = 0; root < kRanks; ++root) {
      for (const std::size_t count : {100u, 700u, 4000u}) {
        const bool in_heap = (group->rank() + root) % 2 == 0;
        std::vector<float> plain(2 * count);
        const auto shared = group->allocate(2 * count * sizeof(float));
        float* const data =
            in_heap ? reinterpret_cast<float*>(shared.get()) : plain.data();
        const auto part = static_cast<std::int64_t>(count / 2);
        const std::vector<Buffer> list{
            {data, part, DataType::kFloat32},
            {data + count, part, DataType::kFloat32}};
        const auto own = static_cast<float>(group->rank() + 1);
        std::fill_n(data, 2 * count, own);
        group->reduce(list, ReduceOp::kSum, root).wait();
        const float sum = group->rank() == root ? 6 : own;
        for (std::size_t i = 0; i < count / 2; ++i) {
          ASSERT_EQ(data[i], sum);
          ASSERT_EQ(data[count + i], sum);
        }
        ASSERT_EQ(data[count / 2], own);  // between the two
        std::fill_n(data, 2 * count, own);
        group->all_reduce(list, ReduceOp::kSum).wait();
        ASSERT_EQ(data[0], 6);
        ASSERT_EQ(data[count + count / 2 - 1], 6);
        ASSERT_EQ(data[count / 2], own);
      }
    }
  });
}

TEST(SharedMemory, WorksWithoutAHeap) {
  const auto store = open_store("memory:");
  Settings settings;
  settings.heap_bytes = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      const auto group =
          make_group("shm", {.name = "g", .rank = rank, .size = 2},
                     std::make_shared<World>(store, settings));
      const auto block = group->allocate(4 << 20);
      const Buffer buffer{block.get(), 1 << 20, DataType::kFloat32};
      std::fill_n(reinterpret_cast<float*>(block.get()), 1 << 20, 2.0f);
      group->all_reduce(buffer, ReduceOp::kAverage).wait();
      EXPECT_EQ(reinterpret_cast<float*>(block.get())[(1 << 20) - 1], 2.0f);
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace lockstep
