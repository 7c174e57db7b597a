#include "src/base/text_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>

#include "lockstep/base/error.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

TEST(ReplaceTextFile, RefusesMoreThanTheLimitOnFileSizesInsteadOfEndingAll) {
  const std::string path =
      testing::TempDir() + "/text_file_test." + std::to_string(::getpid());
  replace_text_file(path, "old");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{4, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  int error_number = 0;
  std::string message;
  try {
    replace_text_file(path, "a new one");
  } catch (const SystemError& error) {
    error_number = error.error_number();
    message = error.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(error_number, EFBIG);
  EXPECT_NE(message.find("ulimit -f"), std::string::npos) << message;
  EXPECT_EQ(read_text_file(path, 100), "old");
  ::unlink(path.c_str());
}

TEST(ReplaceTextFile, KeepsTheModeAndTheLinkThatLeadsToTheFile) {
  const TestDirectory directory;
  replace_text_file(directory / "file", "old");
  constexpr auto kPrivate =
      std::filesystem::perms::owner_read | std::filesystem::perms::owner_write;
  std::filesystem::permissions(directory / "file", kPrivate);
  std::filesystem::create_symlink("file", directory / "link");
  replace_text_file(directory / "link", "new");
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_EQ(contents(directory / "file"), "new");
  EXPECT_EQ(std::filesystem::status(directory / "file").permissions(),
            kPrivate);
  EXPECT_EQ(directory.entries().size(), 2u);
}

}  // namespace
}  // namespace lockstep
