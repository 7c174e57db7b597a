// Duplicates of a group, on every backend that has them.
#include "src/comm/group/duplicates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <deque>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/process_group.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/own_resources.h"
#include "src/base/testing/test_seed.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/group/group_core.h"
#include "src/comm/memory/heap.h"
#include "src/comm/testing/mpirun.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

std::string full_name(const Group& group) {
  return group->core().identity().full_name();
}

class Duplicate : public testing::TestWithParam<const char*> {
 protected:
  static void run(int ranks, const std::function<void(Group)>& body) {
    run_ranks(GetParam(), ranks, body);
  }
};

// mpi_test.cc starts this program under mpirun.
std::vector<const char*> backends() {
  if (started_by_mpirun()) return {"mpi"};
  return {"shm", "gloo", "hybrid"};
}

INSTANTIATE_TEST_SUITE_P(Backends, Duplicate, testing::ValuesIn(backends()),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

// Pending all-reduces of one group or duplicate; every rank starts the same
// ones.
class Sums {
 public:
  explicit Sums(Group group) : group_(std::move(group)) {}

  void start() {
    const std::size_t count = started_.size() % 3 == 2 ? 70'001 : 5;
    auto& data = started_.emplace_back(
        std::vector<float>(count, value(started_.size(), group_->rank())));
    works_.push_back(group_->all_reduce(view(data), ReduceOp::kSum));
  }
  void wait_for_last() { works_.back().wait(kTimeout); }
  void check() {
    for (std::size_t i = 0; i < works_.size(); ++i) {
      works_[i].wait(kTimeout);
      float sum = 0;
      for (int rank = 0; rank < group_->size(); ++rank) sum += value(i, rank);
      EXPECT_EQ(started_[i], std::vector<float>(started_[i].size(), sum));
    }
  }
  std::size_t started() const { return started_.size(); }

 private:
  static float value(std::size_t number, int rank) {
    return static_cast<float>(number + 1) * static_cast<float>(rank + 1);
  }

  Group group_;
  std::deque<std::vector<float>> started_;
  std::vector<Work> works_;
};

// Each rank alternates between the orders as its own seed says, and waits at
// once in the group itself, as a program's own collectives do.
TEST_P(Duplicate, HasAnOrderOfItsOwn) {
  constexpr std::size_t kOperations = 40;
  const std::uint64_t seed = test_seed();
  run(3, [&](Group group) {
    SCOPED_TRACE("LOCKSTEP_TEST_SEED=" + std::to_string(seed));
    const auto first = group->core().duplicate();
    const auto second = group->core().duplicate();
    std::vector<Sums> orders{Sums(group), Sums(first), Sums(second)};
    std::mt19937_64 random(seed + static_cast<std::uint64_t>(group->rank()));
    for (std::size_t left = orders.size() * kOperations; left > 0;) {
      const std::size_t next = random() % orders.size();
      if (orders[next].started() == kOperations) continue;
      orders[next].start();
      if (next == 0) orders[next].wait_for_last();
      --left;
    }
    // The ranks even wait in different orders.
    if (group->rank() % 2 == 0) std::ranges::reverse(orders);
    for (Sums& order : orders) order.check();
  });
}

TEST_P(Duplicate, CarriesMessagesOfItsOwn) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    std::vector<int> here{1}, there{2};
    if (group->rank() == 0) {
      const Work one = duplicate->isend(view(there), 1);
      const Work other = group->isend(view(here), 1);
      one.wait(kTimeout);
      other.wait(kTimeout);
    } else {
      std::vector<int> got{0};
      group->irecv(view(got), 0).wait(kTimeout);
      EXPECT_EQ(got, here);
      duplicate->irecv(view(got), 0).wait(kTimeout);
      EXPECT_EQ(got, there);
    }
    group->barrier().wait(kTimeout);
  });
}

// Other threads of the process open and close a few descriptors meanwhile.
TEST_P(Duplicate, TakesNoDescriptors) {
  constexpr int kDuplicates = 20;  // on each rank
  std::size_t before = 0, after = 0;
  std::barrier all_rest(3);
  run(3, [&](Group group) {
    const auto measure = [&](std::size_t& found) {
      group->barrier().wait(kTimeout);
      all_rest.arrive_and_wait();
      if (group->rank() == 0) found = count_descriptors();
      all_rest.arrive_and_wait();
    };
    measure(before);
    std::vector<Group> duplicates;
    for (int i = 0; i < kDuplicates; ++i) {
      duplicates.push_back(group->core().duplicate());
      std::vector<float> data(100'000, 1);
      duplicates.back()->all_reduce(view(data), ReduceOp::kSum).wait(kTimeout);
    }
    measure(after);
  });
  EXPECT_LT(after, before + kDuplicates);
}

// Rank 0 keeps its duplicate longer than the others.
TEST_P(Duplicate, IsGivenOutAgainOnceAllRanksHaveLetGoOfIt) {
  run(2, [](Group group) {
    Group first = group->core().duplicate();
    const std::string name = full_name(first);
    EXPECT_THAT(name, HasSubstr(" (duplicate 1)"));
    if (group->rank() != 0) first.reset();
    EXPECT_THAT(full_name(group->core().duplicate()),
                HasSubstr(" (duplicate 2)"));
    first.reset();
    for (int i = 0; i < 3; ++i) {
      first = group->core().duplicate();
      EXPECT_EQ(full_name(first), name);
      Sums sums(first);
      for (int j = 0; j <= i; ++j) sums.start();
      sums.check();
      first.reset();
    }
  });
}

// For example, a program passes one to a reducer, which makes another.
TEST_P(Duplicate, OfADuplicateIsAnotherOfTheGroup) {
  run(2, [](Group group) {
    const auto first = group->core().duplicate();
    const auto second = first->core().duplicate();
    EXPECT_THAT(full_name(second), HasSubstr("test (duplicate 2)"));
    const auto third = group->core().duplicate();
    std::vector<Sums> orders{Sums(group), Sums(first), Sums(second),
                             Sums(third)};
    if (group->rank() != 0) std::ranges::reverse(orders);
    for (int i = 0; i < 8; ++i)
      for (Sums& order : orders) order.start();
    for (Sums& order : orders) order.check();
  });
}

// Tries each, so that no duplicate gets messages of the backend itself.
TEST_P(Duplicate, WorksAsTheLastOfAsManyAsThereMayBe) {
  run(2, [](Group group) {
    std::vector<Group> all;
    for (int i = 0; i < Duplicates::kMost; ++i) {
      all.push_back(group->core().duplicate());
      all.back()->barrier().wait(kTimeout);
    }
    for (const Group& each : all) {
      Sums sums(each);
      sums.start();
      sums.check();
    }
  });
}

TEST_P(Duplicate, OutlivesAGroupThatIsDropped) {
  run(2, [](Group group) {
    const auto first = new_group(*group, {0, 1})->core().duplicate();
    Sums sums(first->core().duplicate());
    for (int i = 0; i < 4; ++i) sums.start();
    sums.check();
    group->barrier().wait(kTimeout);
  });
}

// The connections end with the group, once its last Work is gone, but not with
// a duplicate that was given back.
TEST_P(Duplicate, EndsNoWorkOfAGroupThatIsDropped) {
  run(2, [](Group group) {
    auto other = new_group(*group, {0, 1});
    other->core().duplicate();  // made, and given back
    std::vector<float> data(1000, 1);
    if (group->rank() == 1) group->barrier().wait(kTimeout);
    const Work work = other->all_reduce(view(data), ReduceOp::kSum);
    other.reset();
    if (group->rank() == 0) group->barrier().wait(kTimeout);
    work.wait(kTimeout);
    EXPECT_THAT(data, testing::Each(2));
    group->barrier().wait(kTimeout);
  });
}

// Issue 43, point 16: it gave its own name, and rank 1's log as the next step.
TEST_P(Duplicate, GivesTheNameOfItsGroupAndALikelyCauseWhenARankHasLeft) {
  run(2, [](Group group) {
    const auto other = new_group(*group, {0, 1});
    const auto duplicate = other->core().duplicate();
    if (group->rank() == 1)
      other->leave();
    else
      EXPECT_THAT(
          error_text<PeerFailure>([&] { duplicate->barrier().wait(kTimeout); }),
          AllOf(HasSubstr("(group \"[0,1]#1\")"),
                HasSubstr("rank 1 made fewer steps than this rank"),
                HasSubstr("see join()")));
    group->barrier().wait(kTimeout);
  });
}

TEST_P(Duplicate, IsLeftWithWordsOfWhatIsInFlight) {
  for (const bool in_duplicate : {false, true})
    run(2, [&](Group group) {
      const auto other = new_group(*group, {0, 1});
      const auto duplicate = other->core().duplicate();
      const auto& used = in_duplicate ? duplicate : other;
      std::vector<float> data(1 << 20, 1);  // more than one round
      if (group->rank() == 0) {
        const Work work = used->all_reduce(view(data), ReduceOp::kSum);
        other->leave();
        group->barrier().wait(kTimeout);
        EXPECT_ANY_THROW(work.wait(kTimeout));
      } else {
        group->barrier().wait(kTimeout);
        EXPECT_THAT(
            error_text<PeerFailure>([&] {
              used->all_reduce(view(data), ReduceOp::kSum).wait(kTimeout);
            }),
            testing::HasSubstr("operations in flight"));
      }
      group->barrier().wait(kTimeout);
    });
}

// Any thread of a process may be the last to use it.
TEST_P(Duplicate, MayBeDroppedWhileTheEndOfAnotherReachesIt) {
  for (int round = 0; round < 20; ++round)
    run(2, [](Group group) {
      auto duplicate = group->core().duplicate();
      auto other = group->core().duplicate();
      std::vector<float> data(1000), more(1000);
      // Each has a thread that advances its operations.
      Work never = other->irecv(view(more), 1 - group->rank());
      Work another = duplicate->irecv(view(data), 1 - group->rank());
      if (group->rank() == 0) group->abort("the end of it");
      EXPECT_ANY_THROW(never.wait(kTimeout));
    });
}

// Issue 19: after an operation was given up and its memory was withdrawn.
TEST(SharedMemoryGroups, ReduceListsWithEmptyBuffersAfterAFailure) {
  run_ranks("shm", 2, [](Group group) {
    constexpr std::int64_t kCount = 1 << 16;
    if (group->rank() == 0) {
      const auto given_up = group->allocate(1 << 16);
      group->core().heap()->detach(given_up.get(), 1 << 16);
    }
    group->barrier().wait(kTimeout);
    const auto block = group->allocate(kCount * sizeof(float));
    auto* const elements = reinterpret_cast<float*>(block.get());
    std::fill_n(elements, kCount, 1.0F);
    const std::vector<Buffer> list{{block.get(), kCount, DataType::kFloat32},
                                   {nullptr, 0, DataType::kFloat32}};
    group->all_reduce(list, ReduceOp::kSum).wait(kTimeout);
    EXPECT_EQ(std::count(elements, elements + kCount, 2.0F), kCount);
  });
}

TEST_P(Duplicate, TellsOfCallsThatDoNotFit) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    std::vector<float> data(group->rank() == 0 ? 3 : 4);
    const Work work = duplicate->all_reduce(view(data), ReduceOp::kSum);
    EXPECT_THROW(work.wait(kTimeout), Mismatch);
  });
}

// A rank's next operation in any of them fails, after any one has failed.
void expect_end_of(ProcessGroup& group) {
  std::vector<float> data(4);
  EXPECT_ANY_THROW(group.all_reduce(view(data), ReduceOp::kSum).wait(kTimeout));
}

TEST_P(Duplicate, EndsTheGroupWhenItIsAborted) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    const auto other = group->core().duplicate();
    if (group->rank() == 0) duplicate->abort("a bucket is lost");
    expect_end_of(*group);
    expect_end_of(*duplicate);
    expect_end_of(*other);
  });
}

TEST_P(Duplicate, EndsWithTheGroup) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    if (group->rank() == 0) group->abort("no more");
    expect_end_of(*duplicate);
    expect_end_of(*group);
  });
}

// Rank 1 waits in a group where rank 0 has no operation in flight: its wait
// must end.
TEST_P(Duplicate, EndsWhereARankGivesUpInTheGroup) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    std::vector<float> data(4);
    if (group->rank() == 0) {
      const Work work =
          group->all_reduce(view(data), ReduceOp::kSum, {.timeout = 100ms});
      EXPECT_THROW(work.wait(), Timeout);
      expect_end_of(*duplicate);
    } else {
      const Work work = duplicate->all_reduce(view(data), ReduceOp::kSum);
      EXPECT_THROW(work.wait(kTimeout), PeerFailure);
      expect_end_of(*group);
    }
  });
}

TEST_P(Duplicate, IsLeftWithTheGroup) {
  run(2, [](Group group) {
    const auto duplicate = group->core().duplicate();
    if (group->rank() == 0) {
      group->leave();
      std::vector<float> data(4);
      EXPECT_THROW(duplicate->all_reduce(view(data), ReduceOp::kSum).wait(),
                   InvalidArgument);
    } else {
      expect_end_of(*duplicate);
    }
  });
}

TEST_P(Duplicate, OfAGroupOfOneNeedsNobody) {
  run(1, [](Group group) {
    Sums sums(group->core().duplicate());
    for (int i = 0; i < 4; ++i) sums.start();
    sums.check();
  });
}

TEST(Duplicates, OfAGroupAreSoMany) {
  run_ranks("shm", 2, [](Group group) {
    std::vector<Group> all;
    for (int i = 0; i < Duplicates::kMost; ++i)
      all.push_back(group->core().duplicate());
    EXPECT_THAT(error_text([&] { group->core().duplicate(); }),
                HasSubstr("next:    destroy unused ones"));
    all.pop_back();
    EXPECT_NO_THROW(group->core().duplicate());
  });
}

TEST(Duplicates, AreNotForABackendThatCarriesOutWhatItStarts) {
  run_ranks("reference", 2,
            [](Group group) { EXPECT_EQ(group->core().duplicate(), nullptr); });
}

}  // namespace
}  // namespace lockstep
