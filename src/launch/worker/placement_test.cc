// Which CPUs workers get, on hosts that hwloc makes up.
#include "src/launch/worker/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TEST(HostTopology, GivesEachWorkerAnEqualShareOfWholeCores) {
  const HostTopology host("package:1 core:4 pu:2");
  EXPECT_EQ(host.cpus(), 8);
  EXPECT_THAT(host.place(Binding::kCore, 2),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(host.place(Binding::kCore, 4),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                          ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(host.place(Binding::kAuto, 8), SizeIs(8));
}

TEST(HostTopology, UsesEachCpuOnceWhateverTheNumbers) {
  const HostTopology host("package:2 core:3 pu:2");
  for (int workers = 1; workers <= host.cpus(); ++workers) {
    std::vector<int> used;
    for (const auto& cpus : host.place(Binding::kCore, workers)) {
      EXPECT_THAT(cpus, testing::Not(IsEmpty())) << workers;
      used.insert(used.end(), cpus.begin(), cpus.end());
    }
    std::ranges::sort(used);
    EXPECT_THAT(used, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11))
        << workers;
  }
}

// An equal division of eight cores would give the second worker cores of both.
TEST(HostTopology, LetsNoShareSpanTwoSockets) {
  const HostTopology host("package:2 core:4 pu:1");
  const auto places = host.place(Binding::kCore, 3);
  ASSERT_THAT(places, SizeIs(3));
  for (const auto& cpus : places)
    EXPECT_EQ(cpus.front() / 4, cpus.back() / 4) << cpus.front();
}

TEST(HostTopology, WidensASharesToItsSocketOrNumaNode) {
  const HostTopology host("package:2 numa:2 core:2 pu:1");
  EXPECT_THAT(host.place(Binding::kSocket, 3),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 1, 2, 3),
                          ElementsAre(4, 5, 6, 7)));
  EXPECT_THAT(host.place(Binding::kNuma, 4),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3),
                          ElementsAre(4, 5), ElementsAre(6, 7)));
  // One worker has a share of all.
  EXPECT_THAT(host.place(Binding::kNuma, 1), ElementsAre(SizeIs(8)));
  // More workers than cores share a node's cores.
  EXPECT_THAT(host.place(Binding::kNuma, 16), SizeIs(16));
}

TEST(HostTopology, BindsNothingWhereTheUserOrTheNumbersForbidIt) {
  const HostTopology host("package:1 core:2 pu:1");
  EXPECT_THAT(host.place(Binding::kNone, 2), IsEmpty());
  EXPECT_THAT(host.place(Binding::kAuto, 1), IsEmpty());
  EXPECT_THAT(host.place(Binding::kAuto, 3), IsEmpty());
}

TEST(HostTopology, RefusesACoreForEachOfTooManyWorkers) {
  const HostTopology host("package:1 core:2 pu:1");
  try {
    host.place(Binding::kCore, 3);
    FAIL() << "it gave three workers a core each";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("3 ranks cannot have a CPU each"));
    EXPECT_THAT(error.what(), HasSubstr("--bind none"));
  }
}

TEST(HostTopology, IsOfTheCpusThatThisProcessMayUse) {
  EXPECT_EQ(HostTopology().cpus(), static_cast<int>(allowed_cores().size()));
}

}  // namespace
}  // namespace lockstep
