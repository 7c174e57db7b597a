#include "src/launch/worker/worker_table.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <memory>

namespace lockstep {
namespace {

std::optional<std::string> nothing_set(const std::string&) {
  return std::nullopt;
}

class WorkerTableOfShells : public testing::Test {
 protected:
  void start(const std::string& script) {
    WorkerCommand command;
    command.program = "/bin/sh";
    command.arguments = {"sh", "-c", script};
    sigemptyset(&command.signal_mask);
    const int rank = static_cast<int>(table_.all().size());
    table_.add(
        std::make_unique<Worker>(WorkerOptions{.rank = rank,
                                               .local_rank = rank,
                                               .company = Company::kOthers,
                                               .log_path = ""},
                                 std::move(command), screen_));
  }

  void wait_for_all() {
    for (const auto& worker : table_.all()) {
      pollfd entry{worker->process().end(), POLLIN, 0};
      ASSERT_EQ(::poll(&entry, 1, -1), 1);
    }
  }

  int culprit(const std::vector<int>& ranks) {
    EXPECT_TRUE(table_.ended());
    for (const auto& worker : table_.all()) worker->drain();
    return table_.culprit(ranks).rank();
  }

  FileDescriptor nowhere_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  Screen screen_{nowhere_.get(), nowhere_.get(), nothing_set};
  WorkerTable table_;
};

TEST_F(WorkerTableOfShells, BlamesTheKilledRankNotThoseThatMissIt) {
  start("exit 0");
  start("exit 1");
  start("kill -9 $$");
  start("exit 2");
  wait_for_all();
  EXPECT_EQ(table_.failed(), (std::vector{1, 2, 3}));
  EXPECT_EQ(culprit({1, 2, 3}), 2);
}

TEST_F(WorkerTableOfShells, BlamesTheFirstThatEndedAmongEquals) {
  start("exit 0");
  start("exit 3");
  start("exit 2");
  wait_for_all();
  EXPECT_EQ(culprit({1, 2}), 1);
  EXPECT_EQ(culprit({2, 1}), 2);
}

// Issue 21, point 5: survivors end by an exception.
TEST_F(WorkerTableOfShells, BlamesNoRankThatMissedAPeer) {
  start(
      "echo \"terminate called after 'lockstep::PeerFailure'\" >&2; "
      "kill -ABRT $$");
  start("echo bad input >&2; exit 3");
  start("echo 'all_reduce failed: rank 1 is gone: it ended' >&2; exit 1");
  wait_for_all();
  EXPECT_EQ(culprit({0, 2, 1}), 1);
  EXPECT_EQ(culprit({2, 0}), 2);
}

TEST_F(WorkerTableOfShells, BlamesNoSurvivorThatASignalEnded) {
  start(
      "ulimit -c 0; echo 'PeerFailure: rank 1 is gone: it ended' >&2; "
      "kill -SEGV $$");
  start("exit 3");
  wait_for_all();
  EXPECT_EQ(culprit({0, 1}), 1);
  EXPECT_EQ(culprit({0}), 0);
}

TEST_F(WorkerTableOfShells, BlamesNoRankThatQuotesAnotherRanksError) {
  start(
      "echo 'loading a checkpoint failed on rank 1, and therefore on rank 0 of "
      "2:' >&2; echo 'no such file' >&2; exit 1");
  start("echo 'no such file' >&2; exit 1");
  wait_for_all();
  EXPECT_EQ(culprit({0, 1}), 1);
  EXPECT_TRUE(table_.missed_peers(std::vector{0}));
  EXPECT_FALSE(table_.missed_peers(std::vector{0, 1}));
}

TEST_F(WorkerTableOfShells, HasNoFailureWhereAllWentWell) {
  start("exit 0");
  start("sleep 1000");
  EXPECT_TRUE(table_.failed().empty());
  EXPECT_FALSE(table_.ended());
  table_.signal_all(SIGKILL);
  wait_for_all();
  EXPECT_TRUE(table_.ended());
}

TEST_F(WorkerTableOfShells, KeepsNoProcessWhenItIsCleared) {
  start("sleep 1000");
  const pid_t pid = table_.pids().at(0);
  EXPECT_EQ(::kill(pid, 0), 0);
  table_.clear();
  EXPECT_NE(::kill(pid, 0), 0);
}

}  // namespace
}  // namespace lockstep
