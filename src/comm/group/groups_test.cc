// Tests groups made from groups, on every backend with its own set-up.
#include "lockstep/comm/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <latch>
#include <numeric>
#include <thread>
#include <tuple>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/comm/testing/scripted_backend.h"
#include "src/faults/fault_note.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

// The ranks in the job of all members of `group`, by asking them.
std::vector<int> ask_members(ProcessGroup& group, int rank_in_job) {
  std::vector<int> mine{rank_in_job};
  std::vector<int> all(static_cast<std::size_t>(group.size()));
  group.all_gather(view(mine), view(all)).wait(kTimeout);
  return all;
}

class Groups : public testing::TestWithParam<const char*> {
 protected:
  static void run(int ranks, const std::function<void(Group)>& body) {
    run_ranks(GetParam(), ranks, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, Groups, testing::Values("reference", "shm"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

TEST_P(Groups, NumberTheirRanksInTheOrderGiven) {
  run(4, [](Group world) {
    const std::vector<int> order{3, 0, 2};
    const Group group = new_group(*world, order);
    if (world->rank() == 1) {
      EXPECT_FALSE(group->is_member());
      return;
    }
    EXPECT_EQ(order.at(static_cast<std::size_t>(group->rank())), world->rank());
    EXPECT_EQ(ask_members(*group, world->rank()), order);
    EXPECT_EQ(group->backend(), GetParam());
  });
}

TEST_P(Groups, MayBeMadeInAnyOrderWhereTheyShareNoMember) {
  run(4, [](Group world) {
    const std::vector<int> low{0, 1};
    const std::vector<int> high{2, 3};
    const bool is_low = world->rank() < 2;
    const Group first = new_group(*world, is_low ? low : high);
    const Group second = new_group(*world, is_low ? high : low);
    EXPECT_TRUE(first->is_member());
    EXPECT_FALSE(second->is_member());
    EXPECT_EQ(ask_members(*first, world->rank()), is_low ? low : high);
  });
}

TEST_P(Groups, MayBeMadeByTheirMembersAlone) {
  run(3, [](Group world) {
    if (world->rank() == 1) return;
    const Group pair = new_group(*world, std::vector<int>{0, 2});
    EXPECT_THAT(ask_members(*pair, world->rank()), ElementsAre(0, 2));
  });
}

TEST_P(Groups, OfTheSameRanksAreDifferentGroups) {
  run(2, [](Group world) {
    const std::vector<int> both{0, 1};
    const Group one = new_group(*world, both);
    const Group other = new_group(*world, both);
    EXPECT_NE(one->name(), other->name());
    one->leave();
    EXPECT_THAT(ask_members(*other, world->rank()), ElementsAre(0, 1));
  });
}

// From 33 members on the name of a group does not contain all of them.
TEST(NewGroups, OfManyRanksDifferThoughTheyShareTheFirstOnes) {
  run_ranks("shm", 36, [](const Group& world) {
    std::vector<int> members(35);
    std::iota(members.begin(), members.end(), 0);
    const Group one = new_group(*world, members);
    members.back() = 35;
    const Group other = new_group(*world, members);
    EXPECT_NE(one->name(), other->name());
    EXPECT_LT(one->name().size(), 80u);
    if (other->is_member()) {
      EXPECT_EQ(ask_members(*other, world->rank()), members);
    }
    members.back() = 34;
    if (one->is_member()) {
      EXPECT_EQ(ask_members(*one, world->rank()), members);
    }
  });
}

TEST_P(Groups, NestAndNameTheirMembersByTheJobsRanks) {
  run(5, [](Group world) {
    if (world->rank() == 0) return;
    const Group outer = new_group(*world, std::vector<int>{4, 3, 2, 1});
    if (outer->rank() == 0) return;
    // Ranks 1, 2 and 3 of `outer` are 3, 2 and 1 of the job.
    const Group inner = new_group(*outer, std::vector<int>{3, 1, 2});
    EXPECT_THAT(ask_members(*inner, world->rank()), ElementsAre(1, 3, 2));
    EXPECT_THAT(get_process_group_ranks(*inner), ElementsAre(1, 3, 2));
    EXPECT_EQ(get_global_rank(*inner, 1), 3);
    EXPECT_EQ(get_group_rank(*inner, 3), 1);
    EXPECT_THROW(get_global_rank(*inner, 3), InvalidArgument);
    EXPECT_THROW(get_group_rank(*inner, 4), InvalidArgument);
    EXPECT_THAT(get_process_group_ranks(*world), ElementsAre(0, 1, 2, 3, 4));
    EXPECT_THAT(inner->name(), HasSubstr("[1,3,2]"));
  });
}

TEST_P(Groups, RefuseCallsOfThoseThatAreNoMembers) {
  run(2, [](Group world) {
    const Group group = new_group(*world, std::vector<int>{0});
    if (world->rank() == 0) return;
    EXPECT_EQ(group->rank(), -1);
    EXPECT_EQ(group->backend(), "none");
    const auto refusal = [&](auto action) { return error_text(action); };
    std::vector<float> data(1);
    const auto no_member = HasSubstr("not a member of group \"[0]\"");
    EXPECT_THAT(refusal([&] { std::ignore = group->barrier(); }), no_member);
    EXPECT_THAT(refusal([&] {
                  std::ignore = group->all_reduce(view(data), ReduceOp::kSum);
                }),
                no_member);
    EXPECT_THAT(refusal([&] { group->send(view(data), 0); }), no_member);
    EXPECT_THAT(refusal([&] {
                  std::ignore = group->all_gather_v(view(data), view(data));
                }),
                no_member);
    EXPECT_THAT(refusal([&] { group->allocate(8); }), no_member);
    EXPECT_THAT(refusal([&] { monitored_barrier(*group, 1s); }),
                HasSubstr("does not have this rank as a member"));
    group->leave();
    group->abort("nothing to abort");
  });
}

TEST(NewGroup, RefusesRanksThatCannotBeAGroup) {
  run_ranks("reference", 3, [](Group world) {
    const auto refusal = [&](std::vector<int> ranks) {
      return error_text([&] { new_group(*world, ranks); });
    };
    EXPECT_THAT(refusal({}), HasSubstr("at least one rank"));
    EXPECT_THAT(refusal({0, 3}),
                HasSubstr("new_group [0, 3]: a rank is out of range (group "
                          "\"test\" has ranks 0 to 2)"));
    EXPECT_THAT(refusal({-1}), HasSubstr("out of range"));
    EXPECT_THAT(refusal({1, 0, 1}), HasSubstr("occurs twice"));
  });
}

TEST_P(Groups, SplitByColorAndAreOrderedByKey) {
  run(6, [](Group world) {
    const int rank = world->rank();
    // Rank 5 joins no group; even and odd ranks get separate groups, the
    // highest rank first.
    const Color mine{.color = rank == 5 ? -1 : rank % 2, .key = -rank};
    const Group group = split(*world, mine);
    if (rank == 5) {
      EXPECT_FALSE(group->is_member());
      EXPECT_THAT(error_text([&] { std::ignore = group->barrier(); }),
                  HasSubstr("not a member"));
      return;
    }
    const std::vector<int> expected =
        rank % 2 == 0 ? std::vector<int>{4, 2, 0} : std::vector<int>{3, 1};
    EXPECT_EQ(ask_members(*group, rank), expected);
  });
}

TEST_P(Groups, OfNoColorHaveNoRanks) {
  run(2, [](Group world) {
    const Group group = split(*world, {.color = world->rank() - 1});
    EXPECT_EQ(get_process_group_ranks(*group),
              world->rank() == 0 ? std::vector<int>() : std::vector{1});
  });
}

TEST_P(Groups, SplitWithEqualKeysKeepTheParentsOrder) {
  run(4, [](Group world) {
    const Group group = split(*world, {.color = 7});
    EXPECT_EQ(group->rank(), world->rank());
    EXPECT_EQ(group->size(), 4);
  });
}

// In a group of two `members` of `world` the second gives up; `check` checks
// the first one's error.
void expect_failure_of_the_second(
    ProcessGroup& world, const std::vector<int>& members,
    const std::function<void(const PeerFailure&)>& check) {
  const Group group = new_group(world, members);
  if (!group->is_member()) return;
  if (group->rank() == 1) {
    group->abort("it was told to");
    return;
  }
  try {
    group->barrier().wait(kTimeout);
    ADD_FAILURE() << "no error";
  } catch (const PeerFailure& error) {
    EXPECT_EQ(error.rank(), 1);
    check(error);
  }
}

TEST_P(Groups, NameTheRankThatGaveUpAsTheGroupCountsIt) {
  run(3, [](Group world) {
    expect_failure_of_the_second(*world, {2, 1}, [](const PeerFailure& error) {
      EXPECT_THAT(error.what(), HasSubstr("\"[2,1]#1\""));
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
      EXPECT_THAT(error.what(), HasSubstr("it was told to"));
    });
  });
}

class GroupsOnEveryBackend : public Groups {};

INSTANTIATE_TEST_SUITE_P(Backends, GroupsOnEveryBackend,
                         testing::Values("reference", "shm", "gloo"),
                         [](const auto& backend) {
                           return std::string(backend.param);
                         });

TEST_P(GroupsOnEveryBackend, SayWhichLogOfTheJobToRead) {
  run(3, [](Group world) {
    expect_failure_of_the_second(*world, {1, 2}, [](const PeerFailure& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 (rank 2 of the job)"));
      EXPECT_THAT(error.what(), HasSubstr("next:    read rank 2's log"));
    });
  });
}

TEST_P(GroupsOnEveryBackend, RefuseToAllocateMoreThanCanBeAddressed) {
  run(2, [](Group world) {
    for (const std::size_t beyond : {1, 4, 63}) {
      const std::size_t bytes = std::size_t{0} - beyond;
      EXPECT_THAT(
          error_text<InvalidArgument>([&] { world->allocate(bytes); }),
          HasSubstr(std::to_string(bytes) + " bytes are more than a process"));
    }
  });
}

TEST_P(GroupsOnEveryBackend, SayInATimeoutWhichRankOfTheJobIsMissing) {
  run(3, [](Group world) {
    const Group group = new_group(*world, std::vector<int>{1, 2});
    if (world->rank() == 1) {
      EXPECT_THAT(error_text<Timeout>(
                      [&] { group->barrier({.timeout = 20ms}).wait(); }),
                  HasSubstr("missing: rank 1 (rank 2 of the job)"));
    }
    monitored_barrier(*world, kTimeout);
  });
}

// In the callers' words, on all ranks. A name that is too long is truncated.
TEST_P(GroupsOnEveryBackend, SayInAMismatchWhereEachRankCalled) {
  run(3, [](Group world) {
    const Group group = new_group(*world, std::vector<int>{0, 1, 2});
    const std::vector<std::string> places{
        "my averaging", "", "a\x1b[31m\n" + std::string(100, 'p') + "cc:7"};
    const int rank = group->rank();
    std::vector<float> data(rank == 0 ? 10 : 11);
    const auto text = error_text<Error>([&] {
      group
          ->all_reduce(view(data), ReduceOp::kSum,
                       {.label = places[static_cast<std::size_t>(rank)]})
          .wait();
    });
    EXPECT_THAT(
        text,
        AllOf(HasSubstr("called:  all_reduce #1 (sum, 10 x float32) at my "
                        "averaging by rank 0\n"),
              HasSubstr("called:  all_reduce #1 (sum, 11 x float32) by rank "
                        "1\n"),
              HasSubstr("called:  all_reduce #1 (sum, 11 x float32) at "
                        "a?[31m?ppppppppppppppp...pppppppppppppppppppcc:7 by "
                        "rank 2\n")));
  });
}

TEST(AGroupOnSharedMemory, SaysWhichRankOfTheJobDidNotComeToForm) {
  Settings settings;
  settings.rendezvous_timeout = 20ms;
  for (const int rank : {0, 1}) {
    const GroupIdentity identity{
        .name = "[5,7]#1", .rank = rank, .size = 2, .members = {5, 7}};
    const auto world = std::make_shared<World>(open_store("memory:"), settings);
    EXPECT_THAT(
        error_text<Timeout>([&] { make_group("shm", identity, world); }),
        HasSubstr(rank == 0 ? "missing: rank 1 (rank 7 of the job)"
                            : "missing: rank 0 (rank 5 of the job)"));
  }
}

TEST_P(Groups, StayUsableWhenAGroupMadeFromThemFails) {
  run(2, [](Group world) {
    const Group group = new_group(*world, std::vector<int>{0, 1});
    if (world->rank() == 0) group->abort("on purpose");
    if (world->rank() == 1) {
      EXPECT_THROW(group->barrier().wait(kTimeout), PeerFailure);
    }
    world->barrier().wait(kTimeout);
  });
}

// Runs ranks as threads with a common store; rank r waits `timeout[r]` for the
// others while a group forms.
void run_patient_ranks(const std::vector<std::chrono::milliseconds>& timeout,
                       const std::function<void(ProcessGroup&)>& body) {
  const auto store = open_store("memory:");
  std::vector<std::thread> threads;
  const int size = static_cast<int>(timeout.size());
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      Settings settings;
      settings.plugin_path = LOCKSTEP_TEST_PLUGINS;
      settings.host_id = rank % 2 == 0 ? "even" : "odd";
      settings.rendezvous_timeout = timeout[static_cast<std::size_t>(rank)];
      const auto world = std::make_shared<World>(store, settings);
      ProcessGroup parent(std::make_unique<GroupCore>(
          std::make_shared<ScriptedBackend>(),
          GroupIdentity{.rank = rank, .size = size}, kTimeout, world));
      body(parent);
    });
  for (std::thread& thread : threads) thread.join();
}

// Tries until it succeeds; counts the attempts that failed.
Group make_at_last(ProcessGroup& parent, const std::vector<int>& ranks,
                   const char* backend, std::atomic<int>& failures) {
  while (true) try {
      return new_group(parent, ranks, {.backend = backend});
    } catch (const Error&) {
      ++failures;
    }
}

// Issue 19, point 12. Rank 2 comes after the others have given up several
// times; the number may differ between them.
TEST(NewGroups, MeetThoughRanksHaveTriedDifferentlyOften) {
  for (const char* backend : {"shm", "gloo", "hybrid", "reference"}) {
    std::atomic<int> failures = 0;
    std::latch failed_before(4);
    run_patient_ranks({300ms, 300ms, 20s}, [&](ProcessGroup& parent) {
      const std::vector<int> all{2, 0, 1};
      if (parent.rank() == 2)
        failed_before.wait();
      else
        for (int turn = 0; turn < 2; ++turn) {
          EXPECT_THROW(new_group(parent, all, {.backend = backend}), Error);
          failed_before.count_down();
        }
      const Group group = make_at_last(parent, all, backend, failures);
      EXPECT_THAT(ask_members(*group, parent.rank()), ElementsAre(2, 0, 1));
      // They can still form later groups.
      const Group next = make_at_last(parent, all, backend, failures);
      EXPECT_THAT(ask_members(*next, parent.rank()), ElementsAre(2, 0, 1));
    });
    EXPECT_GT(failures, 0) << backend;  // of rank 2, which was late
  }
}

TEST(NewGroups, EndOnAllMembersWhereOneGivesUp) {
  for (const char* backend : {"shm", "gloo", "hybrid", "reference"})
    run_patient_ranks({60s, 60s, 60s}, [&](ProcessGroup& parent) {
      const std::vector<int> all{0, 1, 2};
      if (parent.rank() == 2) {
        EXPECT_THROW(new_group(parent, all, {.backend = "smoke signals"}),
                     InvalidArgument);
      } else {
        try {
          new_group(parent, all, {.backend = backend});
          ADD_FAILURE() << backend << " formed without rank 2";
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(), HasSubstr("as rank 2 found")) << backend;
          EXPECT_THAT(error.what(), HasSubstr("smoke signals")) << backend;
        }
      }
      const Group group = new_group(parent, all, {.backend = backend});
      EXPECT_THAT(ask_members(*group, parent.rank()), ElementsAre(0, 1, 2));
    });
}

// Issue 19, point 21.
TEST(NewGroups, LeaveNothingInTheStoreOnceTheyAreFormed) {
  for (const char* backend : {"shm", "gloo", "hybrid"})
    run_patient_ranks({60s, 60s, 60s}, [&](ProcessGroup& parent) {
      const std::vector<int> all{0, 1, 2};
      new_group(parent, all, {.backend = backend});
      // Afterwards all ranks have formed the group and erased its keys.
      monitored_barrier(parent, kTimeout);
      for (const char* key : {"verdict", "ready", "left", "ready/0", "ready/1",
                              "ready/2", "host/0", "host/1", "host/2",
                              "shm/leader", "wire/0", "wire/1", "wire/2"})
        EXPECT_FALSE(parent.core().world()->store()->erase(
            std::string("group/[0,1,2]#1/") + key, kTimeout))
            << backend << ": " << key;
    });
}

TEST_P(Groups, RefuseEveryCallAfterTheyWereLeft) {
  run(1, [](Group world) {
    const Group group = new_group(*world, std::vector<int>{0});
    group->leave();
    group->leave();
    const auto refusal = [&](auto action) { return error_text(action); };
    const auto destroyed = HasSubstr("was destroyed");
    std::vector<float> data(1);
    EXPECT_THAT(refusal([&] { std::ignore = group->barrier(); }), destroyed);
    EXPECT_THAT(refusal([&] { std::ignore = group->broadcast(view(data), 0); }),
                destroyed);
    EXPECT_THAT(
        refusal([&] { std::ignore = group->irecv(view(data), kAnySource); }),
        destroyed);
    EXPECT_THAT(refusal([&] { group->allocate(8); }), destroyed);
    EXPECT_THAT(refusal([&] { split(*group, {}); }), destroyed);
    EXPECT_THAT(refusal([&] { new_group(*group, std::vector<int>{0}); }),
                destroyed);
    EXPECT_THAT(refusal([&] { monitored_barrier(*group, 1s); }), destroyed);
  });
}

// Issue 19, point 10.
TEST(AGroupThatWasLeft, IsMissedThoughItsWorksLiveOn) {
  for (const char* backend : {"shm", "gloo", "hybrid", "reference"}) {
    std::latch waited(2);
    run_ranks(backend, 2, [&](Group group) {
      std::vector<float> values(1 << 16, 1);
      const Work kept = group->all_reduce(view(values), ReduceOp::kSum);
      kept.wait(kTimeout);
      Work unmatched;
      std::vector<float> never(1);
      if (group->rank() == 0) {
        unmatched = group->irecv(view(never), 1, 7);
        group->leave();
        EXPECT_NO_THROW(kept.wait()) << backend;
        EXPECT_THAT(error_text([&] { unmatched.wait(); }),
                    HasSubstr("was destroyed on rank 0"))
            << backend;
      } else {
        EXPECT_THROW(
            group->all_reduce(view(values), ReduceOp::kSum).wait(kTimeout),
            PeerFailure)
            << backend;
      }
      waited.arrive_and_wait();  // both works still live
    });
  }
}

TEST(AGroupThatWasLeft, EndsWhatAnotherThreadOfTheRankWaitsFor) {
  for (const char* backend : {"shm", "gloo", "hybrid"}) {
    std::latch started(2);
    run_ranks(backend, 2, [&](Group group) {
      if (group->rank() == 1) return started.arrive_and_wait();
      std::vector<float> values(1 << 16, 1);
      const Work work = group->all_reduce(view(values), ReduceOp::kSum);
      std::thread waiter(
          [&] { EXPECT_THROW(work.wait(kTimeout), Error) << backend; });
      group->leave();
      waiter.join();
      EXPECT_TRUE(work.done()) << backend;
      started.arrive_and_wait();
    });
  }
}

TEST(AGroupThatWasLeft, DeliversWhatItHadSentBefore) {
  for (const char* backend : {"shm", "gloo", "hybrid"}) {
    std::latch received(2);
    run_ranks(backend, 2, [&](Group group) {
      std::vector<float> values(100, static_cast<float>(1 - group->rank()));
      if (group->rank() == 0) {
        const Work sent = group->isend(view(values), 1);
        sent.wait(kTimeout);
        group->leave();
        received.arrive_and_wait();
        return;
      }
      group->recv(view(values), 0, 0, {.timeout = kTimeout});
      EXPECT_EQ(values, std::vector<float>(100, 1)) << backend;
      received.arrive_and_wait();
    });
  }
}

TEST(TheDefaultGroup, RefusesCallsOnceDestroyedAndCanBeMadeAnew) {
  const Group first = init_process_group({.backend = "reference"});
  EXPECT_THROW(init_process_group(), InvalidArgument);
  destroy_process_group();
  destroy_process_group();
  EXPECT_FALSE(is_initialized());
  EXPECT_THAT(error_text([&] { std::ignore = first->barrier(); }),
              HasSubstr("group \"default\" was destroyed on rank 0"));
  EXPECT_THAT(error_text([] { default_group(); }),
              HasSubstr("call init_process_group() first"));
  init_process_group({.backend = "reference"})->barrier().wait(kTimeout);
  destroy_process_group();
}

// A rank that goes on does not fail because of another one.
TEST(TheDefaultGroup, RemovesTheNoteOfAnEarlierFaultWhenItIsMade) {
  const TestDirectory folder;
  const std::string file = folder.path() / "fault-0.json";
  ::setenv("LOCKSTEP_FAULT_FILE", file.c_str(), 1);
  write_fault_note(file, {.culprit = 1});
  init_process_group({.backend = "reference"});
  EXPECT_EQ(read_fault_note(file), std::nullopt);
  destroy_process_group();
  ::unsetenv("LOCKSTEP_FAULT_FILE");
}

TEST_P(Groups, PassAMonitoredBarrierTogether) {
  run(4, [](Group world) {
    for (int turn = 0; turn < 3; ++turn) monitored_barrier(*world, kTimeout);
    const Group pair = new_group(
        *world, world->rank() < 2 ? std::vector{1, 0} : std::vector{2, 3});
    monitored_barrier(*pair, kTimeout);
  });
}

TEST_P(Groups, LearnFromAMonitoredBarrierAllWhoAreLate) {
  std::latch gave_up(2);
  run(4, [&](Group world) {
    const bool late = world->rank() == 1 || world->rank() == 3;
    if (late) gave_up.wait();
    // Rank 2 must be scheduled within rank 0's timeout.
    const std::string error = error_text<Timeout>([&] {
      monitored_barrier(*world, world->rank() == 0 ? 500ms : kTimeout);
    });
    if (!late) gave_up.count_down();
    EXPECT_THAT(error, HasSubstr("missing: ranks 1, 3, after 0.5 s"));
    EXPECT_THAT(error, HasSubstr(late ? "after the others had given up"
                                      : "monitored_barrier timed out on rank"));
    // The group still works.
    monitored_barrier(*world, kTimeout);
    world->barrier().wait(kTimeout);
  });
}

TEST_P(Groups, LearnFromAMonitoredBarrierThatRankZeroIsLate) {
  std::latch gave_up(2);
  run(3, [&](Group world) {
    const bool late = world->rank() == 0;
    if (late) gave_up.wait();
    const std::string error =
        error_text<Timeout>([&] { monitored_barrier(*world, 20ms); });
    if (!late) gave_up.count_down();
    EXPECT_THAT(error, HasSubstr("missing: rank 0"));
  });
}

TEST(MonitoredBarrier, LeavesNothingInTheStoreWhenAllCame) {
  const auto store = open_store("memory:");
  const auto alone = make_group("reference", {.name = "alone"},
                                std::make_shared<World>(store, Settings{}));
  monitored_barrier(*alone, kTimeout);
  for (const char* key : {"0", "verdict"})
    EXPECT_FALSE(
        store->erase("monitored_barrier/alone#1/" + std::string(key), kTimeout))
        << key;
}

}  // namespace
}  // namespace lockstep
