// Tests behaviour that only wire groups have: ranks are threads, over Gloo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <latch>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

// Keeps threads from starting: a thread's stack would exceed the address space.
class NoThreads {
 public:
  NoThreads() {
    ::pthread_getattr_default_np(&before_);
    pthread_attr_t huge;
    ::pthread_attr_init(&huge);
    ::pthread_attr_setstacksize(&huge, std::size_t{1} << 47);
    ::pthread_setattr_default_np(&huge);
    ::pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_{};
};

void exchange_without_threads(Group group) {
  std::vector<float> first(100'000, 1);
  std::vector<float> second(100'000, 2);
  std::vector<float> message(100'000, float(group->rank()));
  const Work one = group->all_reduce(view(first), ReduceOp::kSum);
  const Work other = group->all_reduce(view(second), ReduceOp::kSum);
  const Work passed = group->rank() == 0 ? group->isend(view(message), 1)
                                         : group->irecv(view(message), 0);
  other.wait(kTimeout);
  EXPECT_EQ(second, std::vector<float>(second.size(), 4));
  EXPECT_TRUE(one.done());
  EXPECT_EQ(first, std::vector<float>(first.size(), 2));
  passed.wait(kTimeout);
  EXPECT_EQ(message, std::vector<float>(message.size(), 0));
}

TEST(Wire, CarriesOutWhatIsWaitedForWhereNoThreadCanStart) {
  std::optional<NoThreads> none;
  std::latch made(2);
  std::latch limited(1);
  run_ranks("gloo", 2, [&](Group group) {
    made.arrive_and_wait();
    if (group->rank() == 0) {
      none.emplace();
      EXPECT_THROW(std::thread([] {}).join(), std::system_error);
      limited.count_down();
    }
    limited.wait();
    exchange_without_threads(std::move(group));
  });
}

// While a caller waits for the first, the group's own thread leaves both to it.
TEST(Wire, CarriesOutWhatStandsBehindTheOperationThatACallerWaitedFor) {
  run_ranks("gloo", 2, [](Group group) {
    for (int round = 0; round < 50; ++round) {
      std::vector<float> first(1'000, 1);
      std::vector<float> second(1'000, 2);
      const Work one = group->all_reduce(view(first), ReduceOp::kSum);
      const Work other = group->all_reduce(view(second), ReduceOp::kSum);
      one.wait(kTimeout);
      const Deadline deadline(kTimeout);
      while (!other.done() && !deadline.expired()) std::this_thread::yield();
      ASSERT_TRUE(other.done()) << "round " << round;
      EXPECT_EQ(second, std::vector<float>(second.size(), 4));
    }
  });
}

// The connections end before the thread that carries out the barrier.
TEST(Wire, SaysThatTheGroupWasLeftWithOperationsInFlight) {
  std::latch left(2);
  run_ranks("gloo", 2, [&](Group group) {
    if (group->rank() == 0) {
      std::vector<float> data(1);
      const Work message = group->irecv(view(data), 1);
      const Work barrier = group->barrier();
      while (barrier.missing().empty()) std::this_thread::yield();
      std::thread waiter([&] {
        EXPECT_THAT(error_text<Error>([&] { message.wait(); }),
                    HasSubstr("was destroyed on rank 0 while this operation"));
      });
      group->leave();
      waiter.join();
      EXPECT_THAT(error_text<Error>([&] { barrier.wait(); }),
                  HasSubstr("was destroyed on rank 0 while this operation"));
    }
    left.arrive_and_wait();
  });
}

}  // namespace
}  // namespace lockstep
