#include "src/launch/nodes/program_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ProgramIdentity : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::filesystem::path file = folder_.path() / name;
    std::ofstream(file) << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return file.string();
  }

  TestDirectory folder_;
};

std::string identity(const std::vector<std::string>& command) {
  return program_identity(command, "/usr/bin:/bin");
}

TEST_F(ProgramIdentity, IsThatOfTheBytesAndNotOfThePlace) {
  const std::string one = write("train", "abc");
  std::filesystem::create_directory(folder_.path() / "copy");
  const std::string copy = write("copy/train", "abc");
  EXPECT_THAT(identity({one}), StartsWith("train (3 bytes, hash "));
  EXPECT_EQ(identity({one}), identity({copy}));
  const std::string before = identity({one});
  write("train", "abd");
  EXPECT_NE(identity({one}), before);
}

TEST_F(ProgramIdentity, IsThatOfTheScriptWhereTheSystemRunsIt) {
  const std::string script = write("train.py", "print(1)");
  EXPECT_THAT(identity({"python3", "-u", script, "--lr", "0.1"}),
              StartsWith("train.py (8 bytes"));
  EXPECT_THAT(identity({"/bin/sh", script}), StartsWith("train.py (8 bytes"));
}

TEST_F(ProgramIdentity, IsFoundOnThePath) {
  write("tool", "x");
  EXPECT_THAT(program_identity(std::vector<std::string>{"tool"},
                               folder_.path().string()),
              StartsWith("tool (1 bytes"));
}

TEST_F(ProgramIdentity, DoesNotTakeAnArgumentForTheProgram) {
  const std::string program = write("train", "abc");
  const std::string data = write("data", "0123456789");
  EXPECT_THAT(identity({program, data}), StartsWith("train "));
  EXPECT_EQ(identity({"python3", "-u", "-m", "module", data}), "");
  EXPECT_EQ(identity({"sh", "-c", "true", data}), "");
}

TEST_F(ProgramIdentity, IsEmptyWhereThereIsNoFile) {
  EXPECT_EQ(identity({}), "");
  EXPECT_EQ(identity({"/no/such/program"}), "");
  EXPECT_EQ(identity({"true"}), "");
  EXPECT_EQ(identity({"sh", folder_.path().string()}), "");  // a folder
}

TEST_F(ProgramIdentity, OfAVeryLargeFileIsItsSize) {
  const std::string file = write("large", "");
  std::filesystem::resize_file(file, (std::uintmax_t{1} << 30) + 1);
  EXPECT_EQ(identity({"sh", file}), "large (1073741825 bytes)");
}

}  // namespace
}  // namespace lockstep
