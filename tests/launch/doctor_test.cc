// `lockstep doctor` as a program: its output and exit code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launched_command.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Doctor, FindsSharedMemoryUsable) {
  const CommandResult table = run_lockstep({"doctor"});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(HasSubstr("  ok  backend shm "),
                               HasSubstr("Training on this host works.\n")));
  const CommandResult json = run_lockstep({"doctor", "--json"});
  EXPECT_EQ(json.exit_code, 0) << json.err;
  EXPECT_THAT(json.out, HasSubstr("\"can_train\": true"));
}

// A new network's loopback is down. A user other than root needs a user
// namespace for it, which some hosts refuse.
TEST(Doctor, FailsWhereRanksCannotReachEachOther) {
  const CommandResult result = run_lockstep(
      {"run", "sh", "-c",
       "unshare -rn true || exit 77; exec unshare -rn " LOCKSTEP_COMMAND
       " doctor --host-only"});
  if (result.exit_code == 77)
    GTEST_SKIP() << "a network of its own cannot be made here";
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("  NO  network "),
                    HasSubstr("ranks of this host cannot reach each other"),
                    HasSubstr("ip link set lo up")));
}

TEST(Doctor, FailsWhereSharedMemoryCannotBeHad) {
  const CommandResult result = run_lockstep(
      {"run", "sh", "-c", "ulimit -n 8; exec " LOCKSTEP_COMMAND " doctor"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, AllOf(HasSubstr("  NO  backend shm "),
                                HasSubstr("ulimit -n 4096")));
}

}  // namespace
}  // namespace lockstep
