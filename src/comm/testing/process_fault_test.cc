// Tests ranks, as processes, that die or disagree. Deadlines are long: they
// only keep a failing test from hanging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <random>

#include "lockstep/base/error.h"
#include "lockstep/store/store.h"
#include "src/base/exit_status.h"
#include "src/base/sanitized.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"
#include "src/net/free_port.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::string> ranks_program(const std::string& name) {
  return {LOCKSTEP_COMM_RANKS, name};
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST(RanksAsProcesses, PassTheConformanceSuite) {
  for (const int ranks : {1, 2, 3, 8}) {
    RankProcesses processes(ranks, ranks_program("conformance"));
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
          << "rank " << rank << " of " << ranks << ":\n"
          << processes.output(rank);
  }
}

TEST(RanksAsProcesses, StageWhatOneOfThemHasNoAddressSpaceFor) {
  const std::string heap =
      "LOCKSTEP_HEAP_BYTES=" + std::to_string(std::size_t{4} << 30);
  RankProcesses processes(3, ranks_program("conformance_without_room"), {heap});
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
        << "rank " << rank << ":\n"
        << processes.output(rank);
}

TEST(RanksAsProcesses, StageWhereALimitAdmitsNoHeap) {
  const std::string heap =
      "LOCKSTEP_HEAP_BYTES=" + std::to_string(std::size_t{4} << 30);
  for (const char* limit : {"LIMIT=as", "LIMIT=fsize"})
    for (const char* limited : {"ON_ALL_RANKS=1", "LIMITED_RANK=1"}) {
      RankProcesses processes(3, ranks_program("conformance_without_a_heap"),
                              {heap, limit, limited});
      for (int rank = 0; rank < 3; ++rank)
        EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
            << limit << ", " << limited << ", rank " << rank << ":\n"
            << processes.output(rank);
    }
}

// On each backend: neither a hang, nor writes after the error.
TEST(RanksAsProcesses, EndAnOperationForWhichAnAllocationFails) {
  for (const char* backend : {"shm", "gloo"})
    for (const char* what :
         {"failing_allocations", "failing_allocations_of_messages"}) {
      RankProcesses ranks(2, ranks_program(what),
                          {std::string("LOCKSTEP_BACKEND=") + backend});
      for (int rank = 0; rank < 2; ++rank)
        EXPECT_EQ(ranks.wait_for_end(rank, std::chrono::minutes(2)), 0)
            << backend << ", rank " << rank << ": " << ranks.output(rank);
    }
}

// Issue 19: every group of the process used to end.
TEST(RanksAsProcesses, WorkOnWhenASubGroupIsDroppedWithAnUnmatchedReceive) {
  RankProcesses processes(2, ranks_program("unmatched_receive"));
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
        << "rank " << rank << ":\n"
        << processes.output(rank);
}

TEST(RanksAsProcesses, OutliveAForkedChildThatEnds) {
  for (const char* backend : {"shm", "gloo"}) {
    RankProcesses processes(2, ranks_program("forked_child"),
                            {std::string("LOCKSTEP_BACKEND=") + backend,
                             // The child has copies of the memory of its
                             // parent's threads, but not the threads.
                             "ASAN_OPTIONS=detect_leaks=0"});
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
          << processes.output(rank);
      EXPECT_NE(processes.output(rank).find("all are still here"),
                std::string::npos);
    }
  }
}

// Issue 43, point 16. There is nothing to read in the log of a rank that ended
// well. That it left does not tell whether it failed: only the status of its
// process does, which a pipe in place of a pidfd hides.
TEST(RanksAsProcesses, SayThatARankThatEndedWellMadeFewerSteps) {
  using Variables = std::vector<std::string>;
  for (const Variables& how : {Variables{"LOCKSTEP_BACKEND=shm"},
                               {"LOCKSTEP_BACKEND=shm", "WITHOUT_PIDFD=1"},
                               {"LOCKSTEP_BACKEND=reference"},
                               {"LOCKSTEP_BACKEND=gloo"}}) {
    RankProcesses processes(2, ranks_program("leave_early"), how);
    // Rank 1 is not reaped before rank 0 has read its status.
    EXPECT_EQ(processes.wait_for_end(0, kTimeout), 10);
    EXPECT_EQ(processes.wait_for_end(1, kTimeout), 0) << processes.output(1);
    const std::string& output = processes.output(0);
    EXPECT_THAT(output, HasSubstr("rank 1 made fewer steps than this rank"));
    EXPECT_THAT(output,
                HasSubstr("give every rank as many steps, or see join()"));
    // Under load, the process may take long to end.
    const bool is_known = how == Variables{"LOCKSTEP_BACKEND=shm"} &&
                          output.find(describe(ExitStatus{})) != output.npos;
    EXPECT_NE(output.find("rank 1's log") != std::string::npos, is_known)
        << output;
  }
}

// jemalloc and tcmalloc are common advice for PyTorch.
TEST(RanksAsProcesses, AreToldThatGlooCannotWorkWithAPreloadedMalloc) {
  if (kSanitized) GTEST_SKIP() << "the sanitizer has a malloc of its own";
  const std::string preload =
      std::string("LD_PRELOAD=") + LOCKSTEP_PRELOADED_MALLOC;
  RankProcesses on_wire(2, ranks_program("barrier"),
                        {preload, "LOCKSTEP_BACKEND=gloo"});
  RankProcesses on_host(2, ranks_program("barrier"), {preload});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(on_wire.wait_for_end(rank, kTimeout), 10);
    for (const char* part :
         {"this process takes its malloc from " LOCKSTEP_PRELOADED_MALLOC,
          "next:    start all ranks without that malloc"})
      EXPECT_NE(on_wire.output(rank).find(part), std::string::npos)
          << on_wire.output(rank);
    EXPECT_EQ(on_host.wait_for_end(rank, kTimeout), 0) << on_host.output(rank);
  }
}

TEST(RanksAsProcesses, NeedNoPidfds) {
  for (const char* name : {"barrier", "forked_child"}) {
    RankProcesses processes(3, ranks_program(name),
                            {"WITHOUT_PIDFD=1",
                             // See OutliveAForkedChildThatEnds.
                             "ASAN_OPTIONS=detect_leaks=0"});
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
          << processes.output(rank);
  }
}

// Issue 19, point 14; issue 43, point 5: a child that waited for its parent's
// operation took the rank's place.
TEST(RanksAsProcesses, OutliveAForkedChildThatCallsAndDestroysAGroup) {
  for (const char* backend : {"shm", "gloo", "hybrid", "reference"}) {
    RankProcesses processes(2,
                            ranks_program("forked_child_with_static_objects"),
                            {std::string("LOCKSTEP_BACKEND=") + backend,
                             "ASAN_OPTIONS=detect_leaks=0"});
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
          << backend << ", rank " << rank << ":\n"
          << processes.output(rank);
      EXPECT_NE(processes.output(rank).find("and the watchdog answers"),
                std::string::npos)
          << backend;
    }
  }
}

// Issue 19, point 15. If rank 0 serves the store, the connections to the store
// end with it.
TEST(AKilledRank, IsNamedThoughAForkedChildOfItLives) {
  for (const std::string backend : {"shm", "gloo", "reference"})
    for (const int victim : {0, 1}) {
      TcpStoreServer signal("127.0.0.1", 0, "");
      std::vector<std::string> environment{
          "LOCKSTEP_BACKEND=" + backend, "VICTIM=" + std::to_string(victim),
          "SIGNAL_PORT=" + std::to_string(signal.port())};
      if (backend != "shm")
        environment.push_back("INIT_METHOD=tcp://127.0.0.1:" +
                              std::to_string(find_free_port()));
      RankProcesses processes(3, ranks_program("die_with_a_child"),
                              environment);
      for (int rank = 0; rank < 3; ++rank) {
        const int code = processes.wait_for_end(rank, kTimeout);
        if (rank == victim) continue;
        EXPECT_EQ(code, 10)
            << backend << ", rank " << rank << ": " << processes.output(rank);
      }
      open_store(signal.url())->set("noticed", {}, kTimeout);
    }
}

// COUNT selects the inline path, and the staged or mapped path.
TEST(AKilledRank, IsNamedByEverySurvivorThatHadPublished) {
  for (const char* count : {"COUNT=1", "COUNT=1000000"}) {
    RankProcesses processes(3, ranks_program("held_before_all_reduce"),
                            {count, "VICTIM=1"});
    processes.wait_for_line(1, "holding", kTimeout);
    processes.wait_for_line(0, "published", kTimeout);
    processes.wait_for_line(2, "published", kTimeout);
    processes.send_signal(1, SIGKILL);
    for (const int survivor : {0, 2}) {
      EXPECT_EQ(processes.wait_for_end(survivor, kTimeout), 10);
      EXPECT_NE(processes.output(survivor).find("PeerFailure of rank 1: "
                                                "all_reduce #2"),
                std::string::npos)
          << processes.output(survivor);
    }
  }
}

// Rank `victim` of `ranks` ends while a group forms; the others name it long
// before the five minutes that ranks wait for each other.
void expect_to_be_missed(const std::string& program, int ranks, int victim,
                         std::vector<std::string> environment) {
  environment.push_back("VICTIM=" + std::to_string(victim));
  RankProcesses processes(ranks, ranks_program(program), environment);
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = processes.wait_for_end(rank, kTimeout);
    if (rank == victim) continue;
    EXPECT_EQ(code, 10) << program << ", rank " << rank;
    EXPECT_NE(processes.output(rank).find("PeerFailure of rank " +
                                          std::to_string(victim)),
              std::string::npos)
        << program << ", rank " << rank << ":\n"
        << processes.output(rank);
  }
}

// Issue 19, point 20.
TEST(ARankThatEndsWhileAGroupForms, IsNamedByAllOthersAtOnce) {
  for (const char* program :
       {"die_while_a_group_forms", "die_before_the_default_group"})
    for (const char* backend : {"shm", "gloo", "reference"})
      for (const int victim : {0, 2})
        expect_to_be_missed(program, 3, victim,
                            {std::string("LOCKSTEP_BACKEND=") + backend});
}

TEST(ARankThatEndsWhileAGroupForms, IsNamedOnSeveralHosts) {
  for (const int victim : {0, 3})
    expect_to_be_missed("die_while_a_group_forms", 4, victim,
                        {"LOCKSTEP_BACKEND=hybrid", "HOSTS=2"});
}

// One of the ranks is killed at a random moment of their all_reduces; the
// others name it.
void kill_somewhere(int ranks, unsigned seed,
                    std::vector<std::string> environment) {
  std::mt19937 random(seed);
  environment.push_back("SEED=" + std::to_string(seed));
  RankProcesses processes(ranks, ranks_program("all_reduce_for_ever"),
                          environment);
  for (int rank = 0; rank < ranks; ++rank)
    processes.wait_for_line(rank, "begun", kTimeout);
  const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
  // A random moment: it waits for no event, so a deadline passes.
  EXPECT_THROW(
      processes.wait_for_line((victim + 1) % ranks, "a line that never comes",
                              std::chrono::microseconds(random() % 30000)),
      Timeout);
  processes.send_signal(victim, SIGKILL);
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = processes.wait_for_end(rank, kTimeout);
    if (rank == victim) continue;
    EXPECT_EQ(code, 10) << "seed " << seed;
    EXPECT_NE(processes.output(rank).find("PeerFailure of rank " +
                                          std::to_string(victim)),
              std::string::npos)
        << "seed " << seed << ": " << processes.output(rank);
  }
}

TEST(AKilledRank, IsNamedWhereverItWas) {
  const unsigned seed = std::random_device{}();
  for (unsigned round = 0; round < 20; ++round)
    kill_somewhere(3, seed + round, {});
}

TEST(AKilledRank, IsNamedWhereTheKernelHasNoPidfds) {
  const unsigned seed = std::random_device{}();
  for (unsigned round = 0; round < 5; ++round)
    kill_somewhere(3, seed + round, {"WITHOUT_PIDFD=1"});
}

TEST(AKilledRank, IsNamedToARankThatOnlyPolls) {
  for (const char* backend : {"shm", "gloo"}) {
    RankProcesses ranks(2, ranks_program("poll_a_message"),
                        {std::string("LOCKSTEP_BACKEND=") + backend});
    EXPECT_EQ(ranks.wait_for_end(0, kTimeout), 10);
    EXPECT_NE(ranks.output(0).find("PeerFailure of rank 1"), std::string::npos)
        << backend << ": " << ranks.output(0);
  }
}

// Issue 43: the kernel refuses to read the memory, and the rank blamed its
// peer.
TEST(ARankThatSendsBadMemory, IsTheOneThatIsNamed) {
  RankProcesses ranks(2, ranks_program("send_what_cannot_be_read"),
                      {"LOCKSTEP_BACKEND=gloo"});
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_EQ(ranks.wait_for_end(rank, kTimeout), 10);
  EXPECT_THAT(ranks.output(1),
              AllOf(HasSubstr("Error: send "),
                    HasSubstr("the memory of a buffer of this rank cannot be "
                              "read or written")));
  EXPECT_THAT(ranks.output(0), HasSubstr("PeerFailure of rank 1"));
}

// Issue 43: on gloo at the deadline.
TEST(AKilledRank, EndsAReceiveFromAnySourceButARankThatLeavesDoesNot) {
  // With hybrid, only the check of its host tells rank 0 that rank 1 has died:
  // rank 2 is on another host.
  for (const std::string backend : {"shm", "gloo", "hybrid"}) {
    const std::string hosts = backend == "hybrid" ? "HOSTS=2" : "HOSTS=3";
    RankProcesses killed(3, ranks_program("receive_from_any_while_one_ends"),
                         {"LOCKSTEP_BACKEND=" + backend, hosts});
    EXPECT_EQ(killed.wait_for_end(0, kTimeout), 10);
    EXPECT_THAT(killed.output(0), HasSubstr("PeerFailure of rank 1"))
        << backend;
    RankProcesses left(3, ranks_program("receive_from_any_while_one_ends"),
                       {"LOCKSTEP_BACKEND=" + backend, hosts, "LEAVES=1"});
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_EQ(left.wait_for_end(rank, kTimeout), 0)
          << backend << ", rank " << rank << ": " << left.output(rank);
  }
}

// `late` enters the collective only once all others have named `victim`.
void expect_to_be_noticed(int ranks, int late, int victim,
                          std::vector<std::string> environment) {
  environment.push_back("LATE=" + std::to_string(late));
  environment.push_back("VICTIM=" + std::to_string(victim));
  RankProcesses processes(ranks, ranks_program("be_late_while_one_is_gone"),
                          environment);
  for (int rank = 0; rank < ranks; ++rank) {
    const int code = processes.wait_for_end(rank, kTimeout);
    if (rank == victim) continue;
    EXPECT_EQ(code, 10);
    EXPECT_NE(processes.output(rank).find("PeerFailure of rank " +
                                          std::to_string(victim)),
              std::string::npos)
        << "late: " << late << ", victim: " << victim << ", rank " << rank
        << ":\n"
        << processes.output(rank);
  }
}

// LOCKSTEP_CHECK=off: the elements travel without a comparison of the calls.
TEST(ARankThatIsGone, IsNoticedOnTheWireWhileAnotherRankIsLate) {
  for (const std::vector<std::string>& how :
       {std::vector<std::string>{},
        {"LEAVES=1"},
        {"LOCKSTEP_CHECK=off", "COUNT=100000"},
        {"LOCKSTEP_CHECK=off", "COUNT=100000", "LEAVES=1"}})
    for (int late = 0; late < 3; ++late)
      for (int victim = 0; victim < 3; ++victim) {
        if (victim == late) continue;
        auto environment = how;
        environment.push_back("LOCKSTEP_BACKEND=gloo");
        expect_to_be_noticed(3, late, victim, environment);
      }
}

// A rank that leaves while the first rank of its host is late is connected to
// no other rank.
TEST(ARankThatIsGone, IsNoticedOnEachHostWhileAnotherRankIsLate) {
  for (int late = 0; late < 4; ++late)
    for (int victim = 0; victim < 4; ++victim) {
      if (victim == late) continue;
      expect_to_be_noticed(4, late, victim,
                           {"HOSTS=2", "LOCKSTEP_BACKEND=hybrid"});
      const bool is_seen = late % 2 != 0 || victim != late + 1;
      if (is_seen)
        expect_to_be_noticed(
            4, late, victim,
            {"HOSTS=2", "LOCKSTEP_BACKEND=hybrid", "LEAVES=1"});
    }
}

// One rank of a host learns it from its wait on the wire or in the store, and
// tells another one that waits in shared memory.
TEST(ARankThatIsGone, IsNamedByAllRanksOfAHostWhereOneIsLate) {
  for (const auto& [late, victim] :
       {std::pair{4, 0}, std::pair{3, 0}, std::pair{5, 1}, std::pair{1, 3}})
    expect_to_be_noticed(6, late, victim,
                         {"HOSTS=3", "LOCKSTEP_BACKEND=hybrid"});
}

// The store ends with rank 0: with the killed rank, or with a survivor that
// ends before the other.
TEST(AKilledRank, IsNamedOnTheWireWhenTheStoreEndsAsWell) {
  const unsigned seed = std::random_device{}();
  for (unsigned round = 0; round < 20; ++round) {
    const std::string store =
        "INIT_METHOD=tcp://127.0.0.1:" + std::to_string(find_free_port());
    kill_somewhere(5, seed + round, {"LOCKSTEP_BACKEND=gloo", store});
  }
}

TEST(AKilledRank, LeavesNothingBehind) {
  // Abstract sockets and memfds end with the last process that holds them, so
  // only this process could leak them.
  const std::size_t descriptors = open_descriptors();
  for (int victim = 0; victim < 2; ++victim) {
    RankProcesses processes(
        2, ranks_program("held_before_all_reduce"),
        {"COUNT=100000", "VICTIM=" + std::to_string(victim)});
    processes.wait_for_line(victim, "holding", kTimeout);
    processes.send_signal(victim, SIGKILL);
    EXPECT_EQ(processes.wait_for_end(victim, kTimeout), 128 + SIGKILL);
    EXPECT_EQ(processes.wait_for_end(1 - victim, kTimeout), 10);
  }
  EXPECT_EQ(open_descriptors(), descriptors);
}

TEST(RanksThatDisagree, AreToldApartOnEveryRank) {
  RankProcesses processes(3, ranks_program("mismatch"));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 10);
    const std::string& output = processes.output(rank);
    EXPECT_NE(output.find("Mismatch: "), std::string::npos) << output;
    EXPECT_NE(output.find("called:  all_reduce #1 (sum, 10 x float32) by ranks "
                          "0, 2"),
              std::string::npos)
        << output;
    EXPECT_NE(
        output.find("called:  all_reduce #1 (sum, 11 x float32) by rank 1"),
        std::string::npos)
        << output;
  }
}

TEST(RanksAsProcesses, FindEachOtherThroughAFile) {
  const auto folder = std::filesystem::temp_directory_path() /
                      ("lockstep-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  {
    RankProcesses processes(
        2, ranks_program("mismatch"),
        {"INIT_METHOD=file://" + (folder / "store").string()});
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 10);
      EXPECT_NE(processes.output(rank).find("Mismatch: "), std::string::npos)
          << processes.output(rank);
    }
  }
  std::filesystem::remove_all(folder);
}

// Shows that the thread sanitizer would report a race in shared memory.
TEST(RanksAsProcesses, GetTheLastBroadcastOfTheRankThatServesTheStore) {
  const std::string url =
      "INIT_METHOD=tcp://127.0.0.1:" + std::to_string(find_free_port());
  RankProcesses processes(3, ranks_program("broadcast_and_leave"),
                          {url, "LOCKSTEP_BACKEND=reference"});
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
        << "rank " << rank << ":\n"
        << processes.output(rank);
}

TEST(RanksAsProcesses, PassAMonitoredBarrierThoughTheStoreEndsAfterIt) {
  for (int turn = 0; turn < 5; ++turn) {
    const std::string url =
        "INIT_METHOD=tcp://127.0.0.1:" + std::to_string(find_free_port());
    RankProcesses processes(4, ranks_program("monitored_barrier_and_end"),
                            {url});
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 0)
          << "rank " << rank << ":\n"
          << processes.output(rank);
  }
}

TEST(SharedMemoryOfThreads, IsWatchedByTheThreadSanitizer) {
#if defined(__SANITIZE_THREAD__)
  RankProcesses processes(1, ranks_program("planted_race"));
  EXPECT_EQ(processes.wait_for_end(0, kTimeout), 66);
  EXPECT_NE(processes.output(0).find("data race"), std::string::npos);
#else
  GTEST_SKIP() << "built without the thread sanitizer";
#endif
}

TEST(ARankThatNeverComes, IsNamedByTheOthers) {
  // The world size is 3, but only two ranks come.
  RankProcesses processes(2, ranks_program("mismatch"),
                          {"WORLD_SIZE=3", "LOCKSTEP_RENDEZVOUS_TIMEOUT=0.5"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 10);
    const std::string& output = processes.output(rank);
    EXPECT_NE(output.find("Timeout: "), std::string::npos) << output;
    EXPECT_NE(output.find("missing: rank 2"), std::string::npos) << output;
  }
}

}  // namespace
}  // namespace lockstep
