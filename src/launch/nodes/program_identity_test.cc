#include "src/launch/nodes/program_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::StartsWith;

std::string program(const std::vector<std::string>& command) {
  return own_program(command).string();
}

TEST(OwnProgram, IsThePathThatTheUserHasWritten) {
  EXPECT_EQ(program({"./train", "--data", "/data"}), "./train");
  EXPECT_EQ(program({"/home/me/train"}), "/home/me/train");
}

TEST(OwnProgram, IsTheScriptThatPythonRuns) {
  EXPECT_EQ(program({"python3", "-u", "train.py", "--lr", "1"}), "train.py");
  EXPECT_EQ(program({"/opt/python/bin/python3.11", "a/b.py"}), "a/b.py");
}

TEST(OwnProgram, IsNotWhatIsInstalledNorAnArgument) {
  const std::vector<std::vector<std::string>> commands{
      {},
      {"train"},
      {"cat", "/etc/hosts"},
      {"env", "./train"},
      {"taskset", "-c", "0", "./train"},
      {"sh", "-c", "./train", "x.py"},
      {"python3"},
      {"python3", "-u"},
      {"python3", "-u", "-m", "module", "x.py"},
      {"/opt/python/bin/python3", "-c", "pass"}};
  for (const auto& command : commands) EXPECT_EQ(program(command), "");
}

class IdentityOf : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name,
                              const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }

  TestDirectory folder_;
};

TEST_F(IdentityOf, AProgramIsThatOfItsBytes) {
  const std::string one = identity_of(write("train-1", "abc"));
  EXPECT_THAT(one, StartsWith("3 bytes, hash "));
  EXPECT_EQ(identity_of(write("train-2", "abc")), one);
  EXPECT_NE(identity_of(write("train-3", "abd")), one);
  EXPECT_THAT(identity_of(write("empty", "")), StartsWith("0 bytes, hash "));
}

TEST_F(IdentityOf, WhatIsNoFileIsEmptyAndDoesNotBlock) {
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  EXPECT_EQ(identity_of(folder_ / "fifo"), "");
  EXPECT_EQ(identity_of(folder_.path()), "");
  EXPECT_EQ(identity_of(folder_ / "missing"), "");
}

TEST_F(IdentityOf, AVeryLargeFileIsItsSize) {
  const auto file = write("large", "");
  std::filesystem::resize_file(file, (std::uintmax_t{1} << 30) + 1);
  EXPECT_EQ(identity_of(file), "1073741825 bytes");
}

}  // namespace
}  // namespace lockstep
