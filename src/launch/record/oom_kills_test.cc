#include "src/launch/record/oom_kills.h"

#include <gmock/gmock.h>

#include <csignal>
#include <fstream>

#include "src/base/testing/test_directory.h"
#include "src/launch/record/failure_report.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::Not;
using Of = OomKills::Of;

TEST(OomKills, AreOneLineOfTheKernelsCounters) {
  EXPECT_EQ(oom_kills_in("nr_free_pages 1\noom_kill 3\nunused 0\n"), 3);
  EXPECT_EQ(oom_kills_in("nr_free_pages 1\n"), std::nullopt);
  EXPECT_EQ(oom_kills_in("nr\noom_kill x\n"), std::nullopt);
}

class CountedOomKills : public testing::Test {
 protected:
  void put(const std::string& file, const std::string& text) const {
    const auto path = folder_ / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  // The count, and whether it is that of the group alone.
  std::pair<std::int64_t, bool> count() const {
    const auto kills =
        count_oom_kills({.groups = {folder_ / "self", folder_ / "groups"},
                         .host = folder_ / "vmstat"});
    return kills ? std::pair(kills->count, kills->of == Of::kGroup)
                 : std::pair(std::int64_t{-1}, false);
  }

  const TestDirectory folder_;
};

TEST_F(CountedOomKills, AreThoseOfTheProcesssGroup) {
  put("vmstat", "a 1\noom_kill 9\n");
  put("self/cgroup", "0::/job\n");
  put("groups/job/memory.events", "low 0\noom 5\noom_kill 2\n");
  EXPECT_EQ(count(), std::pair(std::int64_t{2}, true));
}

TEST_F(CountedOomKills, AreFoundInTheFirstVersionToo) {
  put("vmstat", "a 1\noom_kill 9\n");
  put("self/cgroup", "9:name=systemd:/a\n4:cpu,memory:/job\n0::/\n");
  put("groups/memory/job/memory.oom_control",
      "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
  EXPECT_EQ(count(), std::pair(std::int64_t{3}, true));
}

// In a container the group has the host's path, which is not mounted there.
TEST_F(CountedOomKills, AreThoseOfTheContainerWhereTheGroupIsNotToBeSeen) {
  put("self/cgroup", "0::/host/only\n");
  put("groups/memory.events", "low 0\noom_kill 4\n");
  EXPECT_EQ(count(), std::pair(std::int64_t{4}, true));
}

TEST_F(CountedOomKills, AreThoseOfTheHostWithoutSuchAGroup) {
  EXPECT_EQ(count(), std::pair(std::int64_t{-1}, false));
  put("vmstat", "a 1\noom_kill 9\n");
  EXPECT_EQ(count(), std::pair(std::int64_t{9}, false));
  put("self/cgroup", "nonsense\n4:memory:/\n0::/\n");
  put("groups/memory/memory.oom_control", "under_oom 0\noom_kill 3\n");
  EXPECT_EQ(count(), std::pair(std::int64_t{9}, false));
}

std::string cause(std::optional<OomKills> oom_kills) {
  return likely_cause({.status = {.signal = SIGKILL}, .oom_kills = oom_kills});
}

TEST(OomKills, ExplainWhoKilledARank) {
  EXPECT_THAT(
      cause(OomKills{.count = 2, .of = Of::kGroup}),
      HasSubstr("the kernel killed it because memory ran out (2 processes of "
                "this control group"));
  EXPECT_THAT(cause(OomKills{.count = 0, .of = Of::kGroup}),
              HasSubstr("another process killed it; the kernel"));
  EXPECT_THAT(cause(OomKills{.count = 0, .of = Of::kHost}),
              HasSubstr("another process killed it; the kernel"));
  EXPECT_THAT(cause({}), HasSubstr("dmesg"));
}

// Another program's death is no evidence that the kernel killed this one.
TEST(OomKills, OfTheWholeHostExplainItPerhaps) {
  EXPECT_THAT(cause(OomKills{.count = 1, .of = Of::kHost}),
              AllOf(HasSubstr("the kernel may have killed it"),
                    HasSubstr("1 process of this host"), HasSubstr("dmesg")));
}

}  // namespace
}  // namespace lockstep
