#include "src/comm/memory/memory_limit.h"

#include <gtest/gtest.h>

#include <fstream>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

void put(const std::filesystem::path& file, const std::string& text) {
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

TEST(MemoryLimit, IsTheLeastOfTheGroupAndThoseAboveIt) {
  const TestDirectory folder;
  put(folder.path() / "self/cgroup", "0::/a/b\n");
  put(folder.path() / "groups/a/memory.max", "5000\n");
  put(folder.path() / "groups/a/b/memory.max", "7000\n");
  EXPECT_EQ(memory_limit(folder.path() / "self", folder.path() / "groups"),
            5000u);
}

TEST(MemoryLimit, IsFoundInTheFirstVersionToo) {
  const TestDirectory folder;
  put(folder.path() / "self/cgroup",
      "9:name=systemd:/\n4:cpu,memory:/job\n3:cpuset:/other\n0::/\n");
  put(folder.path() / "groups/memory/memory.limit_in_bytes",
      "9223372036854771712\n");
  put(folder.path() / "groups/memory/job/memory.limit_in_bytes", "4096\n");
  EXPECT_EQ(memory_limit(folder.path() / "self", folder.path() / "groups"),
            4096u);
}

// In a container the group has the host's path, which is not mounted there.
TEST(MemoryLimit, IsThatOfTheRootWhereTheGroupIsNotToBeSeen) {
  const TestDirectory folder;
  put(folder.path() / "self/cgroup", "0::/host/only\n");
  put(folder.path() / "groups/memory.max", "100\n");
  EXPECT_EQ(memory_limit(folder.path() / "self", folder.path() / "groups"),
            100u);
}

TEST(MemoryLimit, IsNothingWithoutOne) {
  const TestDirectory folder;
  EXPECT_EQ(memory_limit(folder.path() / "self", folder.path() / "groups"),
            std::nullopt);
  put(folder.path() / "self/cgroup", "0::/a\nnonsense\n");
  put(folder.path() / "groups/a/memory.max", "max\n");
  EXPECT_EQ(memory_limit(folder.path() / "self", folder.path() / "groups"),
            std::nullopt);
}

}  // namespace
}  // namespace lockstep
