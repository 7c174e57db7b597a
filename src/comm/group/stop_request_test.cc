#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"
#include "src/base/testing/test_timeout.h"
#include "src/comm/testing/rank_processes.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

TEST(StopRequest, IsAgreedOnAfterTheSameStepThoughOneRankGotTheSignal) {
  for (const char* backend : {"shm", "gloo"}) {
    RankProcesses ranks(3, {LOCKSTEP_COMM_RANKS, "work_until_asked_to_stop"},
                        {std::string("LOCKSTEP_BACKEND=") + backend});
    for (int rank = 0; rank < 3; ++rank)
      ranks.wait_for_line(rank, "works", kTimeout);
    ranks.send_signal(1, SIGTERM);
    const std::string said =
        ranks.wait_for_line(0, "stopped after step", kTimeout);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(ranks.wait_for_end(rank, kTimeout), StopRequest::kStartAgain)
          << ranks.output(rank);
      EXPECT_NE(ranks.output(rank).find(said), std::string::npos)
          << ranks.output(rank);
    }
  }
}

TEST(StopRequest, TakesOneSignalAndThenLeavesItToTheProcess) {
  run_ranks("reference", 1, [](const std::shared_ptr<ProcessGroup>& group) {
    struct sigaction now {};
    {
      StopRequest stop(group, SIGUSR2);
      EXPECT_THROW(StopRequest(group, SIGUSR1), InvalidArgument);
      EXPECT_FALSE(stop.agreed());
      ::raise(SIGUSR2);
      ::raise(SIGUSR2);  // as from a scheduler and from the launcher
      EXPECT_TRUE(stop.agreed());
    }
    // While the rank leaves.
    ::raise(SIGUSR2);
    ::sigaction(SIGUSR2, nullptr, &now);
    EXPECT_NE(now.sa_handler, SIG_DFL);
    EXPECT_FALSE(StopRequest(group, SIGUSR2).agreed());
    EXPECT_THROW(StopRequest(group, SIGKILL), InvalidArgument);
    EXPECT_FALSE(StopRequest(group, SIGUSR2).agreed());
  });
}

TEST(StopRequest, LeavesForkedChildrenTheSignal) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the thread sanitizer handles signals itself";
#endif
  run_ranks("reference", 1, [](const std::shared_ptr<ProcessGroup>& group) {
    const StopRequest stop(group, SIGUSR2);
    const pid_t child = ::fork();
    if (child == 0) {
      ::raise(SIGUSR2);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), SIGUSR2);
  });
}

TEST(StopRequest, OfRanksThatAreThreadsIsOneSignals) {
  run_ranks("reference", 3, [](const std::shared_ptr<ProcessGroup>& group) {
    StopRequest stop(group, SIGUSR2);
    EXPECT_FALSE(stop.agreed());
    if (group->rank() == 1) ::raise(SIGUSR2);
    EXPECT_TRUE(stop.agreed());
    group->barrier().wait();
  });
}

TEST(StopRequest, RestoresTheSignalsEarlierAction) {
  run_ranks("reference", 1, [](const std::shared_ptr<ProcessGroup>& group) {
    std::signal(SIGUSR2, SIG_IGN);
    { const StopRequest stop(group, SIGUSR2); }
    EXPECT_EQ(std::signal(SIGUSR2, SIG_DFL), SIG_IGN);
  });
}

}  // namespace
}  // namespace lockstep
