#include "src/checkpoint/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/testing/other_user.h"
#include "src/net/pipe.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = 5min;

std::string refusal_of(const TestDirectory& directory) {
  return error_text([&] { const FolderLock lock(directory.path(), 0s); });
}

TEST(FolderLock, IsForOneAtATimeAndNamesTheProcess) {
  const TestDirectory directory;
  const pid_t own = ::getpid();
  auto first = std::make_optional<FolderLock>(directory.path(), kLong);
  EXPECT_THAT(refusal_of(directory), AllOf(HasSubstr("is in use: this process"),
                                           HasSubstr("next:    use that one")));
  const pid_t other = ::fork();
  if (other == 0) {
    const std::string text = refusal_of(directory);
    const std::string owner = "process " + std::to_string(own) + " on ";
    ::_exit(text.find(owner) != text.npos &&
                    text.find("next:    wait for that process") != text.npos
                ? 0
                : 1);
  }
  int status = -1;
  EXPECT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  auto moved = std::make_optional(std::move(*first));
  first.reset();
  EXPECT_THAT(refusal_of(directory), HasSubstr("in use"));
  moved.reset();
  EXPECT_EQ(refusal_of(directory), "no error");
}

TEST(FolderLock, EndsWithItsProcessForWhichOthersWait) {
  const TestDirectory directory;
  Pipe locked = make_pipe();
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const FolderLock lock(directory.path(), kLong);
    if (::write(locked.write.get(), "!", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  locked.write.reset();
  char byte = 0;
  ASSERT_EQ(::read(locked.read.get(), &byte, 1), 1);
  EXPECT_THAT(refusal_of(directory),
              HasSubstr("process " + std::to_string(child)));
  EXPECT_EQ(::kill(child, SIGKILL), 0);  // without waiting for it
  EXPECT_EQ(error_text([&] { const FolderLock lock(directory.path(), kLong); }),
            "no error");
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST(FolderLock, IsItsOwnersToEndWhateverForksItHas) {
  const TestDirectory directory;
  auto lock = std::make_optional<FolderLock>(directory.path(), kLong);
  const pid_t ends = ::fork();
  if (ends == 0) {
    lock.reset();
    ::_exit(0);
  }
  EXPECT_EQ(::waitpid(ends, nullptr, 0), ends);
  EXPECT_THAT(refusal_of(directory), HasSubstr("in use"));
  const pid_t stays = ::fork();
  if (stays == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  lock.reset();
  EXPECT_EQ(refusal_of(directory), "no error");
  EXPECT_EQ(::kill(stays, SIGKILL), 0);
  EXPECT_EQ(::waitpid(stays, nullptr, 0), stays);
}

TEST(FolderLock, IsNotOfAFolderThatWasDeletedAndMadeAnew) {
  const TestDirectory directory;
  const auto folder = directory / "runs";
  std::filesystem::create_directory(folder);
  const FolderLock first(folder, kLong);
  EXPECT_TRUE(first.is_of(folder));
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(first.is_of(folder));
  std::filesystem::create_directory(folder);
  const FolderLock second(folder, 0s);
  EXPECT_FALSE(first.is_of(folder));
  EXPECT_TRUE(second.is_of(folder));
}

TEST(FolderLock, IsThereForWhoMayOnlyReadTheFile) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  { const FolderLock of_root(directory.path(), kLong); }
  ASSERT_EQ(::chmod((directory / ".lock").c_str(), 0644), 0);
  const OtherUser user;
  if (!user.works()) GTEST_SKIP() << "to be another user needs root";
  const FolderLock lock(directory.path(), 0s);
  EXPECT_THAT(refusal_of(directory), HasSubstr("in use"));
}

TEST(FolderLock, SaysWhyItCannotBe) {
  const TestDirectory directory;
  EXPECT_THAT(error_text<SystemError>(
                  [&] { const FolderLock lock(directory / "absent", kLong); }),
              AllOf(HasSubstr("absent"), HasSubstr("No such file")));
}

}  // namespace
}  // namespace lockstep
