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

  FileDescriptor nowhere_{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  Screen screen_{nowhere_.get(), nowhere_.get(), nothing_set};
  WorkerTable table_;
};

TEST_F(WorkerTableOfShells, ListsTheFailedInTheOrderOfRanks) {
  start("exit 0");
  start("exit 1");
  start("kill -9 $$");
  start("exit 2");
  wait_for_all();
  EXPECT_EQ(table_.failed(), (std::vector{1, 2, 3}));
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
