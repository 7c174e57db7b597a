#include "src/base/control_groups.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

class LimitOfControlGroups : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    const auto file = folder_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  const TestDirectory folder_;
  const ControlGroupPlaces places_{folder_.path() / "self",
                                   folder_.path() / "groups"};
};

TEST_F(LimitOfControlGroups, IsTheLeastOfTheGroupAndThoseAboveIt) {
  put("self/cgroup", "0::/a/b\n");
  put("groups/a/memory.max", "5000\n");
  put("groups/a/b/memory.max", "7000\n");
  put("groups/a/pids.max", "max\n");
  put("groups/a/b/pids.max", "70\n");
  EXPECT_EQ(memory_limit(places_), 5000u);
  EXPECT_EQ(thread_limit(places_), 70u);
}

TEST_F(LimitOfControlGroups, IsFoundInTheFirstVersionToo) {
  put("self/cgroup",
      "9:name=systemd:/\n4:cpu,memory:/job\n3:pids:/other\n0::/\n");
  put("groups/memory/memory.limit_in_bytes", "9223372036854771712\n");
  put("groups/memory/job/memory.limit_in_bytes", "4096\n");
  put("groups/pids/other/pids.max", "30\n");
  EXPECT_EQ(memory_limit(places_), 4096u);
  EXPECT_EQ(thread_limit(places_), 30u);
}

// In a container the group has the host's path, which is not mounted there.
TEST_F(LimitOfControlGroups, IsThatOfTheRootWhereTheGroupIsNotToBeSeen) {
  put("self/cgroup", "0::/host/only\n");
  put("groups/memory.max", "100\n");
  EXPECT_EQ(memory_limit(places_), 100u);
}

TEST_F(LimitOfControlGroups, IsNothingWithoutOne) {
  EXPECT_EQ(memory_limit(places_), std::nullopt);
  put("self/cgroup", "0::/a\nnonsense\n");
  put("groups/a/memory.max", "max\n");
  EXPECT_EQ(memory_limit(places_), std::nullopt);
}

}  // namespace
}  // namespace lockstep
