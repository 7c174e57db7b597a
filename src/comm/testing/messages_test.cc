// Tests messages between two ranks, on every backend.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/process_group.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/mpirun.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

std::vector<float> numbers(std::size_t count, float first) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

class Messages : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() == std::string("mpi") && !started_by_mpirun())
      GTEST_SKIP() << "its ranks are started by mpirun: see mpi_test.cc";
  }
  void run(int ranks, const std::function<void(ProcessGroup&)>& body) {
    run_ranks(GetParam(), ranks,
              [&](std::shared_ptr<ProcessGroup> group) { body(*group); });
  }
};

TEST_P(Messages, ArriveWholeWhateverTheirSize) {
  run(2, [](ProcessGroup& group) {
    for (const std::size_t count : {0, 1, 255, 257, 5000, 300000}) {
      const std::vector<float> sent = numbers(count, 1);
      std::vector<float> received(count, -1);
      if (group.rank() == 0) {
        group.send(view(sent), 1);
      } else {
        EXPECT_EQ(group.recv(view(received), 0), 0);
        EXPECT_EQ(received, sent);
      }
    }
  });
}

TEST_P(Messages, ArriveThoughTheReceiverWaitsForSomethingElse) {
  // Below the 10 s after which the watchdog checks operations in flight.
  constexpr CallOptions kImpatience{.timeout = 8s};
  run(2, [&](ProcessGroup& group) {
    std::vector<float> data = numbers(100'000, 1);
    Work received;
    if (group.rank() == 0) {
      group.send(view(data), 1, 0, kImpatience);
    } else {
      data.assign(data.size(), -1);
      received = group.irecv(view(data), 0);
    }
    group.barrier().wait(kTimeout);
    received.wait(kTimeout);
    EXPECT_EQ(data, numbers(100'000, 1));
  });
}

TEST_P(Messages, OfABatchAreRefusedBeforeAnyIsSent) {
  run(2, [](ProcessGroup& group) {
    std::vector<float> first{1};
    std::vector<float> second{2};
    if (group.rank() == 0) {
      const std::vector<Message> batch{
          {Message::Direction::kSend, view(first), 1},
          {Message::Direction::kSend, view(first), 99}};
      EXPECT_THROW(group.batch_isend_irecv(batch), InvalidArgument);
      group.send(view(second), 1);
    } else {
      group.recv(view(first), 0);
      EXPECT_EQ(first, second);
    }
  });
}

TEST_P(Messages, ComeFromTheGroupsOwnMemoryToo) {
  run(2, [](ProcessGroup& group) {
    constexpr std::int64_t kCount = 1 << 18;
    const auto block = group.allocate(kCount * sizeof(float));
    auto* data = reinterpret_cast<float*>(block.get());
    const Buffer buffer{data, kCount, DataType::kFloat32};
    if (group.rank() == 0) std::iota(data, data + kCount, 0.0f);
    if (group.rank() == 0)
      group.send(buffer, 1);
    else
      group.recv(buffer, 0);
    EXPECT_EQ(data[kCount - 1], float(kCount - 1));
    // Once send has returned the memory may be written again.
    if (group.rank() == 0) std::fill_n(data, kCount, 7.0f);
  });
}

TEST_P(Messages, WithOneTagArriveInOrderAndTagsDoNotHoldEachOtherUp) {
  run(2, [](ProcessGroup& group) {
    constexpr int kMany = 100;  // more than any ring holds
    std::vector<int> values(kMany);
    std::iota(values.begin(), values.end(), 0);
    std::vector<Work> works;
    if (group.rank() == 0) {
      for (int& value : values)
        works.push_back(group.isend(view(std::span(&value, 1)), 1, 1));
      int last = -1;
      works.push_back(group.isend(view(std::span(&last, 1)), 1, 2));
      for (const Work& work : works) work.wait(kTimeout);
      return;
    }
    int other = 0;
    group.recv(view(std::span(&other, 1)), 0, 2);
    EXPECT_EQ(other, -1);
    for (int expected = 0; expected < kMany; ++expected) {
      int value = -1;
      group.recv(view(std::span(&value, 1)), 0, 1);
      ASSERT_EQ(value, expected);
    }
  });
}

TEST_P(Messages, FromAnySourceSayWhoSentThem) {
  run(4, [](ProcessGroup& group) {
    constexpr int kEach = 20;
    if (group.rank() != 0) {
      for (int i = 0; i < kEach; ++i) {
        std::vector<int> value{group.rank() * 1000 + i};
        group.send(view(value), 0, 3);
      }
      return;
    }
    std::vector<int> next(4, 0);
    for (int i = 0; i < 3 * kEach; ++i) {
      std::vector<int> value{0};
      const int source = group.recv(view(value), kAnySource, 3);
      ASSERT_EQ(value[0],
                source * 1000 + next[static_cast<std::size_t>(source)]);
      ++next[static_cast<std::size_t>(source)];
    }
    EXPECT_EQ(next, (std::vector<int>{0, kEach, kEach, kEach}));
  });
}

TEST_P(Messages, InABatchNeverDeadlock) {
  run(3, [](ProcessGroup& group) {
    const int right = (group.rank() + 1) % 3;
    const int left = (group.rank() + 2) % 3;
    for (const std::size_t count : {1, 100000}) {
      const std::vector<float> sent = numbers(count, float(group.rank()));
      std::vector<float> received(count);
      const std::vector<Message> batch{
          {Message::Direction::kSend, view(sent), right, 5},
          {Message::Direction::kReceive, view(received), left, 5}};
      for (const Work& work : group.batch_isend_irecv(batch))
        work.wait(kTimeout);
      EXPECT_EQ(received, numbers(count, float(left)));
    }
  });
}

TEST_P(Messages, PassWhileACollectiveIsInFlight) {
  if (GetParam() == std::string("reference"))
    GTEST_SKIP() << "the reference carries collectives out while they start";
  run(2, [](ProcessGroup& group) {
    std::vector<float> sum(40000, 1.0f);
    std::vector<int> value{group.rank()};
    if (group.rank() == 0) {
      const Work reduction = group.all_reduce(view(sum), ReduceOp::kSum);
      group.send(view(value), 1);
      reduction.wait(kTimeout);
    } else {
      group.recv(view(value), 0);  // rank 0 sends only after its all_reduce
      group.all_reduce(view(sum), ReduceOp::kSum).wait(kTimeout);
    }
    EXPECT_EQ(value[0], 0);
    EXPECT_EQ(sum, std::vector<float>(40000, 2.0f));
  });
}

TEST_P(Messages, ThatDoNotFitAreAMismatchThatNamesBothSides) {
  run(2, [](ProcessGroup& group) {
    std::vector<float> values(10);
    if (group.rank() == 0) {
      group.send(view(values), 1);
      return;
    }
    try {
      group.recv(Buffer{values.data(), 9, DataType::kFloat32}, 0);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Mismatch& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("10 x float32 by rank 0"), std::string::npos) << text;
      EXPECT_NE(text.find("9 x float32"), std::string::npos) << text;
    }
  });
}

// The ranks may wait for something else, or not at all.
TEST_P(Messages, ThatDoNotFitEndTheGroupOnBothSides) {
  if (GetParam() == std::string("reference"))
    GTEST_SKIP()
        << "a receive of the reference runs when the caller waits for it";
  for (const std::size_t count : {10, 100'000})
    run(2, [count](ProcessGroup& group) {
      std::vector<float> values(count), sum(1);
      const Work message =
          group.rank() == 0
              ? group.isend(view(values), 1)
              : group.irecv(Buffer{values.data(), 9, DataType::kFloat32}, 0);
      const Deadline deadline(kTimeout);
      const auto reduce = [&] {
        while (!deadline.expired())
          group.all_reduce(view(sum), ReduceOp::kSum).wait(kTimeout);
      };
      EXPECT_THROW(reduce(), Mismatch) << count << ", rank " << group.rank();
    });
}

// The callers only poll.
TEST_P(Messages, ThatNeverComeEndAtTheirDeadline) {
  if (GetParam() == std::string("reference"))
    GTEST_SKIP()
        << "a receive of the reference runs when the caller waits for it";
  run(2, [](ProcessGroup& group) {
    std::vector<float> values(10);
    const Work message =
        group.irecv(view(values), 1 - group.rank(), 0, {.timeout = 50ms});
    const Deadline deadline(kTimeout);
    while (!message.done() && !deadline.expired()) std::this_thread::yield();
    EXPECT_TRUE(message.done());
    EXPECT_THROW(message.wait(), Error);
  });
}

TEST_P(Messages, ThatNeverComeAreATimeout) {
  run(2, [](ProcessGroup& group) {
    std::vector<float> values(10);
    if (group.rank() == 0) return;
    EXPECT_THROW(group.recv(view(values), 0, 0, {.timeout = 50ms}), Error);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Messages,
                         testing::Values("reference", "shm", "gloo", "hybrid",
                                         "mpi"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

}  // namespace
}  // namespace lockstep
