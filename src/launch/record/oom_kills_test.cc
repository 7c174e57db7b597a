#include "src/launch/record/oom_kills.h"

#include <gmock/gmock.h>

#include <csignal>

#include "src/launch/record/failure_report.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

TEST(OomKills, AreOneLineOfTheKernelsCounters) {
  EXPECT_EQ(oom_kills_in("nr_free_pages 1\noom_kill 3\nunused 0\n"), 3);
  EXPECT_EQ(oom_kills_in("nr_free_pages 1\n"), std::nullopt);
  EXPECT_EQ(oom_kills_in("nr\noom_kill x\n"), std::nullopt);
}

std::string cause(std::optional<std::int64_t> oom_kills) {
  return likely_cause({.status = {.signal = SIGKILL}, .oom_kills = oom_kills});
}

TEST(OomKills, ExplainWhoKilledARank) {
  EXPECT_THAT(cause(2), HasSubstr("memory ran out (2 processes of this host"));
  EXPECT_THAT(cause(0), HasSubstr("another process killed it; the kernel"));
  EXPECT_THAT(cause({}), HasSubstr("dmesg"));
}

}  // namespace
}  // namespace lockstep
