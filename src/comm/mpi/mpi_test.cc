// Tests the backend `mpi`, and the MPI bootstrap of other backends, under
// mpirun. Deadlines are long: they only keep a failing test from hanging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "src/base/testing/test_timeout.h"
#include "src/base/text_file.h"
#include "src/comm/testing/mpirun.h"
#include "src/comm/testing/rank_processes.h"
#include "src/net/free_port.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::Not;

struct Ended {
  int code = 0;
  std::string output;
};

class RanksOfMpirun : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = why_no_mpirun();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  // Runs the case `name` of comm_ranks_main.cc on `backend`.
  static Ended run(int ranks, const std::string& backend,
                   const std::string& name,
                   std::vector<std::string> extra = {}) {
    extra.push_back("LOCKSTEP_BACKEND=" + backend);
    return run_program(ranks, {LOCKSTEP_COMM_RANKS, name}, extra);
  }

  static Ended run_program(int ranks, const std::vector<std::string>& program,
                           const std::vector<std::string>& extra = {}) {
    RankProcesses mpirun(1, mpirun_command(ranks, program), extra);
    const int code = mpirun.wait_for_end(0, kTimeout);
    return {code, mpirun.output(0)};
  }

  static std::string of_rank(int rank, const std::string& text) {
    return "[1," + std::to_string(rank) + "]<stdout>:" + text;
  }
};

TEST_F(RanksOfMpirun, PassTheConformanceSuite) {
  for (const int ranks : {1, 2, 3, 8}) {
    const Ended ended = run(ranks, "mpi", "conformance");
    EXPECT_EQ(ended.code, 0) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(" cases, 0 wrong"));
  }
}

TEST_F(RanksOfMpirun, PassTheConformanceSuiteInTwosOnHybridOverMpi) {
  const Ended ended = run_program(
      4,
      {"/bin/sh", "-c",
       "LOCKSTEP_HOST_ID=$((OMPI_COMM_WORLD_RANK / 2)) exec $0 conformance",
       LOCKSTEP_COMM_RANKS},
      {"LOCKSTEP_BACKEND=hybrid", "LOCKSTEP_WIRE=mpi"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr(" cases, 0 wrong"));
}

TEST_F(RanksOfMpirun, PassTheTestsOfMessages) {
  const Ended ended = run_program(
      4, {std::filesystem::read_symlink("/proc/self/exe"), "--gtest_color=no",
          "--gtest_filter=Backends/Messages.*/mpi"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, Not(HasSubstr("PASSED  ] 0 tests")));
  EXPECT_THAT(ended.output, Not(HasSubstr("SKIPPED")));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(ended.output, HasSubstr(of_rank(rank, "[  PASSED  ] ")));
}

TEST_F(RanksOfMpirun, HaveDuplicatesOfTheirGroup) {
  const Ended ended = run_program(
      3,
      {std::filesystem::read_symlink("/proc/self/exe"), "--gtest_color=no",
       "--gtest_filter=Backends/Duplicate.HasAnOrder*/mpi:"
       "Backends/Duplicate.Carries*/mpi:Backends/Duplicate.IsGivenOut*/mpi"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(ended.output, HasSubstr(of_rank(rank, "[  PASSED  ] 3 tests")));
}

TEST_F(RanksOfMpirun, FindEachOtherThoughNothingSaysWhereRankZeroIs) {
  for (const char* backend : {"shm", "gloo", "mpi"}) {
    const Ended ended = run(3, backend, "join_twice");
    EXPECT_EQ(ended.code, 0) << ended.output;
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_THAT(ended.output, HasSubstr(of_rank(rank, "joined twice")));
  }
}

TEST_F(RanksOfMpirun, NeedNoMpiWhereTheyAreToldAnAddress) {
  // An MPI that cannot be loaded.
  std::string folder = testing::TempDir() + "lockstep-no-mpi-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  replace_text_file(folder + "/libmpi.so.40", "not a library");
  const std::string no_plugin = "LD_LIBRARY_PATH=" + folder;
  const Ended refused = run(2, "shm", "barrier", {no_plugin});
  EXPECT_EQ(refused.code, 10);
  EXPECT_THAT(refused.output,
              HasSubstr("neither the environment nor MPI gives rank 0's"));
  EXPECT_THAT(refused.output, HasSubstr("next:    pass -x MASTER_ADDR"));
  const int port = find_free_port();
  const Ended told = run(2, "shm", "barrier",
                         {no_plugin, "MASTER_ADDR=127.0.0.1",
                          "MASTER_PORT=" + std::to_string(port)});
  EXPECT_EQ(told.code, 0) << told.output;
  std::filesystem::remove_all(folder);
}

TEST_F(RanksOfMpirun, MakeGroupsInDifferentOrders) {
  const Ended ended = run(4, "mpi", "groups_in_different_orders");
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(ended.output, HasSubstr(of_rank(rank, "the sum of all is 6")));
}

TEST_F(RanksOfMpirun, MakeGroupsWithoutLeavingAnythingBehind) {
  const Ended ended = run(2, "mpi", "many_groups", {"COUNT=200"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (int rank = 0; rank < 2; ++rank)
    EXPECT_THAT(
        ended.output,
        HasSubstr(of_rank(rank, "more descriptors: 0, more threads: 0")));
}

// The first rank that ends with an error makes mpirun end the others, so some
// may not have printed the error.
TEST_F(RanksOfMpirun, AreToldWhenTheyDisagree) {
  const Ended ended = run(3, "mpi", "mismatch");
  EXPECT_EQ(ended.code, 10);
  EXPECT_THAT(ended.output, HasSubstr("Mismatch: "));
  EXPECT_THAT(ended.output,
              HasSubstr("called:  all_reduce #1 (sum, 10 x float32) by ranks "
                        "0, 2"));
  EXPECT_THAT(ended.output,
              HasSubstr("called:  all_reduce #1 (sum, 11 x float32) by rank "
                        "1"));
}

TEST_F(RanksOfMpirun, AreToldForWhomTheyWaitInVain) {
  const Ended ended =
      run(3, "mpi", "held_before_all_reduce", {"LOCKSTEP_TIMEOUT=1"});
  EXPECT_EQ(ended.code, 10);
  EXPECT_THAT(ended.output, HasSubstr("Timeout: all_reduce #2"));
  EXPECT_THAT(ended.output, HasSubstr("missing: rank 1 on "));
}

// Even though MPI only served the bootstrap, and one rank never ends.
TEST_F(RanksOfMpirun, EndWhenOneGivesUpOnAnyBackend) {
  const Ended ended =
      run(3, "shm", "held_before_all_reduce", {"LOCKSTEP_TIMEOUT=1"});
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output, HasSubstr("Timeout: all_reduce #2"));
}

TEST_F(RanksOfMpirun, NameTheOneThatLeft) {
  const Ended ended = run(3, "mpi", "leave_early", {"LOCKSTEP_TIMEOUT=20"});
  EXPECT_EQ(ended.code, 10);
  EXPECT_THAT(ended.output, HasSubstr("PeerFailure of rank 1: barrier #2"));
  EXPECT_THAT(ended.output, HasSubstr("it left the group"));
}

TEST_F(RanksOfMpirun, NameTheOneThatLeftWhileAnotherIsLate) {
  for (const int late : {1, 2}) {
    const std::string victim = std::to_string(3 - late);
    const Ended ended =
        run(3, "mpi", "be_late_while_one_is_gone",
            {"OMPI_MCA_orte_enable_recovery=1", "LEAVES=1",
             "LATE=" + std::to_string(late), "VICTIM=" + victim});
    EXPECT_THAT(ended.output,
                HasSubstr(of_rank(0, "PeerFailure of rank " + victim)));
  }
}

TEST_F(RanksOfMpirun, AllEndWhenOneIsKilled) {
  const Ended ended = run(3, "mpi", "die");
  EXPECT_EQ(ended.code, 128 + SIGKILL);
}

TEST_F(RanksOfMpirun, AreWhatTheBackendMpiNeeds) {
  RankProcesses processes(2, {LOCKSTEP_COMM_RANKS, "barrier"},
                          {"LOCKSTEP_BACKEND=mpi"});
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(processes.wait_for_end(rank, kTimeout), 10);
    EXPECT_THAT(processes.output(rank),
                HasSubstr("was not started by Open MPI's mpirun"));
    EXPECT_THAT(processes.output(rank),
                HasSubstr("next:    start the program with `mpirun -n"));
  }
}

TEST_F(RanksOfMpirun, AreProcessesNotThreads) {
  const Ended ended = run(1, "mpi", "ranks_as_threads");
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.output,
              HasSubstr("two of its ranks are threads of one process"));
  EXPECT_THAT(ended.output, HasSubstr("next:    start each rank as a process"));
}

TEST_F(RanksOfMpirun, KeepTheirMemoryToThemselvesAfterAnError) {
  const Ended ended = run(2, "mpi", "stopped_sender");
  EXPECT_THAT(ended.output, HasSubstr(of_rank(0, "gave up")));
  EXPECT_THAT(ended.output, HasSubstr(of_rank(0, "0 elements touched")));
  EXPECT_THAT(ended.output, HasSubstr(of_rank(1, "heard of it")));
}

// By default mpirun ends all ranks.
TEST_F(RanksOfMpirun, NameTheOneThatDiedWhereTheyOutliveIt) {
  const Ended ended =
      run(3, "mpi", "die", {"OMPI_MCA_orte_enable_recovery=1", "VICTIM=2"});
  for (const int survivor : {0, 1})
    EXPECT_THAT(ended.output,
                HasSubstr(of_rank(survivor, "PeerFailure of rank 2: barrier")));
}

}  // namespace
}  // namespace lockstep
