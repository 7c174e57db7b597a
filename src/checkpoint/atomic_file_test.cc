#include "src/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/testing/other_user.h"
#include "src/net/file_descriptor.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr std::size_t kLarge = std::size_t{1} << 20;

void replace(const std::filesystem::path& path, const std::string& text) {
  const std::array pieces{std::as_bytes(std::span(text))};
  replace_file(path, pieces);
}

TEST(ReplaceFile, ReplacesWhatWasThereAndLeavesNothingElse) {
  const TestDirectory directory;
  replace(directory / "model", "old");
  const std::string one = "new ", two = "content";
  const std::array pieces{std::as_bytes(std::span(one)),
                          std::as_bytes(std::span(two))};
  replace_file(directory / "model", pieces);
  EXPECT_EQ(contents(directory / "model"), "new content");
  EXPECT_THAT(directory.entries(), ElementsAre("model"));
}

TEST(ReplaceFile, GivesTheFileThePermissionsThatTheUmaskAllows) {
  const TestDirectory directory;
  const mode_t before = ::umask(027);
  replace(directory / "model", "x");
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat((directory / "model").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

mode_t mode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

TEST(ReplaceFile, KeepsTheModeOfTheEarlierFile) {
  const TestDirectory directory;
  const mode_t before = ::umask(022);
  for (const mode_t mode : {0600, 0640, 0666}) {
    replace(directory / "model", "old");
    ASSERT_EQ(::chmod((directory / "model").c_str(), mode), 0);
    replace(directory / "model", "new");
    EXPECT_EQ(mode_of(directory / "model"), mode);
  }
  ::umask(before);
  EXPECT_EQ(contents(directory / "model"), "new");
}

// A user may read and write, the file's group nothing, although the bits of the
// group in the mode are set: they are the ACL's mask.
TEST(ReplaceFile, KeepsTheAccessListOfTheEarlierFileIfTheDiskHasThem) {
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  struct {
    std::uint32_t version = 2;
    Entry entries[5]{
        {1, 6, ~0U}, {2, 6, 1}, {4, 0, ~0U}, {16, 6, ~0U}, {32, 0, ~0U}};
  } list;
  constexpr const char* kName = "system.posix_acl_access";
  const TestDirectory directory;
  const auto path = directory / "model";
  replace(path, "old");
  const bool is_set =
      ::setxattr(path.c_str(), kName, &list, sizeof(list), 0) == 0;
  const mode_t mode = mode_of(path);
  replace(path, "new");
  EXPECT_EQ(mode_of(path), mode);
  auto kept = list;
  kept.version = 0;
  const ssize_t size = ::getxattr(path.c_str(), kName, &kept, sizeof(kept));
  EXPECT_EQ(size, is_set ? ssize_t{sizeof(list)} : -1);
  if (!is_set) return;
  EXPECT_EQ(std::memcmp(&kept, &list, sizeof(list)), 0);
}

TEST(ReplaceFile, ReplacesWhatALinkLeadsToWhetherItExistsOrNot) {
  const TestDirectory directory;
  std::filesystem::create_directory(directory / "disk");
  std::filesystem::create_symlink("disk/model", directory / "link");
  std::filesystem::create_symlink(directory / "link", directory / "other");
  for (const char* name : {"link", "other"}) {
    replace(directory / name, name);
    EXPECT_TRUE(std::filesystem::is_symlink(directory / name));
    EXPECT_EQ(contents(directory / "disk/model"), name);
  }
  EXPECT_THAT(directory.entries(),
              UnorderedElementsAre("disk", "link", "other"));
  std::filesystem::create_symlink("disk/runs/model", directory / "deep");
  prepare_to_replace(directory / "deep");
  EXPECT_TRUE(std::filesystem::is_empty(directory / "disk/runs"));
  std::filesystem::create_symlink("loop", directory / "loop");
  EXPECT_THROW(replace(directory / "loop", "x"), SystemError);
}

TEST(ReplaceFile, FollowsNoLinkOfAnotherUserInAFolderOfAll) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 01777), 0);
  {
    const OtherUser user;
    if (!user.works()) GTEST_SKIP() << "to be another user needs root";
    std::filesystem::create_symlink("mine", directory / "link");
  }
  EXPECT_THAT(
      error_text<SystemError>([&] { replace(directory / "link", "x"); }),
      HasSubstr("another user's link"));
  EXPECT_THAT(directory.entries(), ElementsAre("link"));
}

TEST(ReplaceFile, PastAFileSizeLimitKeepsTheEarlierFile) {
  const TestDirectory directory;
  replace(directory / "model", "old");
  try {
    const SigxfszIgnored no_signal;
    const FileSizeLimit limit(kLarge / 2);
    replace(directory / "model", std::string(kLarge, 'x'));
    FAIL() << "it was written";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), EFBIG);
    EXPECT_THAT(error.what(), HasSubstr("stopped after 524288 bytes"));
  }
  EXPECT_EQ(contents(directory / "model"), "old");
  EXPECT_THAT(directory.entries(), ElementsAre("model"));
}

TEST(ReplaceFile, OnAFullDiskKeepsTheEarlierFile) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "256k");
  replace(directory / "model", "old");
  try {
    replace(directory / "model", std::string(kLarge, 'x'));
    ADD_FAILURE() << "it was written";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), ENOSPC);
    EXPECT_THAT(error.what(), HasSubstr("model"));
  }
  EXPECT_EQ(contents(directory / "model"), "old");
  EXPECT_THAT(directory.entries(), ElementsAre("model"));
}

TEST(ReplaceFile, KilledInTheMiddleLeavesTheEarlierFile) {
  const TestDirectory directory;
  replace(directory / "model", "old");
  const std::string next(kLarge, 'x');
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    // The limit allows half the file; the next write stops the process.
    const rlimit limit{kLarge / 2, kLarge / 2};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    std::signal(SIGXFSZ, [](int) { ::raise(SIGSTOP); });
    replace(directory / "model", next);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  EXPECT_EQ(directory.entries().size(), 2u) << "it stopped outside the write";
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(contents(directory / "model"), "old");
  replace(directory / "model", next);
  EXPECT_EQ(contents(directory / "model"), next);
}

TEST(ReplaceFile, NamesAFolderThatIsNotThere) {
  const TestDirectory directory;
  try {
    replace(directory / "absent/model", "x");
    FAIL() << "it was written";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.error_number(), ENOENT);
    EXPECT_THAT(error.what(), HasSubstr("absent\": No such file"));
  }
}

TEST(ReplaceFile, NeverTakesThePlaceOfADeviceOrAPipe) {
  const TestDirectory directory;
  const auto pipe = directory / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", directory / "link");
  for (const auto& path : {pipe, directory / "link"}) {
    EXPECT_THAT(error_text<SystemError>([&] { replace(path, "x"); }),
                HasSubstr("Operation not supported"));
    EXPECT_THROW(prepare_to_replace(path), SystemError);
  }
  EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  EXPECT_TRUE(std::filesystem::is_symlink(directory / "link"));
  EXPECT_EQ(directory.entries().size(), 2u);
}

// /dev/stdout of `>> log` leads to the log by its name.
TEST(ReplaceFile, NeverTakesThePlaceOfAnOpenFile) {
  const TestDirectory directory;
  replace(directory / "log", "precious");
  const FileDescriptor log(::open((directory / "log").c_str(), O_WRONLY));
  const std::string number = std::to_string(log.get());
  std::filesystem::create_symlink("/proc/self/fd/" + number,
                                  directory / "link");
  for (const std::filesystem::path& path :
       {std::filesystem::path("/proc/self/fd/" + number),
        std::filesystem::path("/dev/fd/" + number), directory / "link"})
    EXPECT_THAT(error_text<SystemError>([&] { replace(path, "x"); }),
                HasSubstr("it is an open file of a process"));
  EXPECT_EQ(contents(directory / "log"), "precious");
}

TEST(ReplaceFile, KeepsWholeContentThatCannotTakeTheName) {
  const TestDirectory directory;
  const std::string error = error_text<SystemError>([&] {
    replace_file(directory / "model", [&](const ByteSink& sink) {
      sink(std::as_bytes(std::span("trained", 7)));
      std::filesystem::create_directory(directory / "model");
    });
  });
  for (const std::string& name : directory.entries()) {
    if (name == "model") continue;
    EXPECT_EQ(contents(directory / name), "trained");
    EXPECT_THAT(error, HasSubstr(directory / name));
  }
  EXPECT_EQ(directory.entries().size(), 2u);
}

TEST(ReplaceFile, SpeaksOfAnEarlierFileOnlyIfThereIsOne) {
  const TestDirectory directory;
  const auto error = [&] {
    const SigxfszIgnored no_signal;
    const FileSizeLimit limit(kLarge / 2);
    return error_text<SystemError>(
        [&] { replace(directory / "model", std::string(kLarge, 'x')); });
  };
  EXPECT_THAT(error(), HasSubstr("524288 bytes: File too large"));
  replace(directory / "model", "old");
  EXPECT_THAT(error(), HasSubstr("bytes; the earlier file is unchanged: "));
}

TEST(ReplaceFile, WritesToAFolderThatMayBeWrittenButNotRead) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 01733), 0);
  {
    const OtherUser user;
    if (!user.works()) GTEST_SKIP() << "to be another user needs root";
    EXPECT_NO_THROW(replace(directory / "model", "x"));
  }
  EXPECT_EQ(contents(directory / "model"), "x");
}

TEST(PrepareToReplace, RefusesAFileThatIsMounted) {
  const TestDirectory directory;
  replace(directory / "source", "old");
  replace(directory / "model", "");
  const std::string model = directory / "model";
  if (::mount((directory / "source").c_str(), model.c_str(), nullptr, MS_BIND,
              nullptr) != 0)
    GTEST_SKIP() << "a bind mount needs root";
  const std::string error =
      error_text<SystemError>([&] { prepare_to_replace(model); });
  EXPECT_EQ(::umount2(model.c_str(), MNT_DETACH), 0);
  EXPECT_THAT(error, HasSubstr("a file is mounted there"));
  EXPECT_EQ(directory.entries().size(), 2u);
  EXPECT_NO_THROW(prepare_to_replace(model));
}

TEST(PrepareToReplace, RefusesWhatMayOnlyGrowOrNotChangeIfTheDiskHasSuch) {
  const TestDirectory directory;
  replace(directory / "model", "old");
  const FileDescriptor folder(::open(directory.path().c_str(), O_RDONLY));
  const FileDescriptor file(::open((directory / "model").c_str(), O_RDONLY));
  int before = 0;
  constexpr auto kNoFlags =
      "the file system has no such flags, or a user no right to them";
  if (::ioctl(file.get(), FS_IOC_GETFLAGS, &before) != 0)
    GTEST_SKIP() << kNoFlags;
  for (const int flag : {FS_APPEND_FL, FS_IMMUTABLE_FL})
    for (const FileDescriptor* changed : {&file, &folder}) {
      int usual = 0;
      ::ioctl(changed->get(), FS_IOC_GETFLAGS, &usual);
      int flags = usual | flag;
      if (::ioctl(changed->get(), FS_IOC_SETFLAGS, &flags) != 0)
        GTEST_SKIP() << kNoFlags;
      const std::string error = error_text<SystemError>(
          [&] { prepare_to_replace(directory / "model"); });
      EXPECT_EQ(::ioctl(changed->get(), FS_IOC_SETFLAGS, &usual), 0);
      EXPECT_THAT(error, HasSubstr("Operation not permitted"));
    }
  EXPECT_THAT(directory.entries(), ElementsAre("model"));
}

TEST(PrepareToReplace, RefusesAnotherUsersFileWhereOnlyOwnersMayReplace) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 01777), 0);
  replace(directory / "model", "old");
  ASSERT_EQ(::chmod((directory / "model").c_str(), 0666), 0);
  const OtherUser user;
  if (!user.works()) GTEST_SKIP() << "to be another user needs root";
  EXPECT_THAT(
      error_text<SystemError>([&] { prepare_to_replace(directory / "model"); }),
      HasSubstr("another user's"));
  EXPECT_NO_THROW(prepare_to_replace(directory / "own"));
}

// As open() does for a user who owns the file. Root may write it.
TEST(PrepareToReplace, RefusesAFileThatMayNotBeWritten) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  const auto path = directory / "model";
  {
    const OtherUser user;
    if (!user.works()) GTEST_SKIP() << "to be another user needs root";
    replace(path, "old");
    ASSERT_EQ(::chmod(path.c_str(), 0444), 0);
    EXPECT_THAT(error_text<SystemError>([&] { prepare_to_replace(path); }),
                HasSubstr("Permission denied"));
    EXPECT_THROW(replace(path, "new"), SystemError);
  }
  EXPECT_EQ(contents(path), "old");
  replace(path, "new");
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(mode_of(path), 0444u);
}

TEST(PrepareToReplace, MakesTheFolderAndTouchesNothingElse) {
  const TestDirectory directory;
  prepare_to_replace(directory / "runs/1/model");
  EXPECT_TRUE(std::filesystem::is_empty(directory / "runs/1"));
}

TEST(PrepareToReplace, MakesAFolderInOneThatMayBeWrittenButNotRead) {
  const TestDirectory directory;
  ASSERT_EQ(::chmod(directory.path().c_str(), 01733), 0);
  const OtherUser user;
  if (!user.works()) GTEST_SKIP() << "to be another user needs root";
  EXPECT_NO_THROW(prepare_to_replace(directory / "runs/1/model"));
  EXPECT_TRUE(std::filesystem::is_empty(directory / "runs/1"));
}

TEST(PrepareToReplace, RefusesWhatCanNeverBeWritten) {
  const TestDirectory directory;
  replace(directory / "file", "x");
  EXPECT_THROW(prepare_to_replace(directory / "file/model"), SystemError);
  EXPECT_THROW(prepare_to_replace(directory.path()), SystemError);
  EXPECT_THROW(prepare_to_replace("/proc/model"), SystemError);
  EXPECT_THAT(directory.entries(), ElementsAre("file"));
}

// Makes a folder with a file that holds `text`.
std::filesystem::path folder_with(const std::filesystem::path& path,
                                  const std::string& text) {
  std::filesystem::create_directory(path);
  replace(path / "file", text);
  return path;
}

ExchangeNames failing_exchange(int reason) {
  return [=](const auto&, const auto&) {
    errno = reason;
    return -1;
  };
}

TEST(ReplaceFolder, TakesAFreeNameOrThatOfAnEmptyFolder) {
  const TestDirectory directory;
  replace_folder(folder_with(directory / ".a.tmp", "new"), directory / "a");
  EXPECT_EQ(contents(directory / "a" / "file"), "new");
  std::filesystem::create_directory(directory / "b");
  replace_folder(folder_with(directory / ".b.tmp", "new"), directory / "b");
  EXPECT_EQ(contents(directory / "b" / "file"), "new");
  EXPECT_THAT(directory.entries(), UnorderedElementsAre("a", "b"));
}

TEST(ReplaceFolder, ReplacesAFolderAlsoWhereNamesCannotBeExchanged) {
  const TestDirectory directory;
  const auto a = folder_with(directory / "a", "old");
  replace_folder(folder_with(directory / ".a.tmp", "new"), a);
  EXPECT_EQ(contents(a / "file"), "new");
  for (const int reason : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    const std::string text = "newer" + std::to_string(reason);
    replace_folder(folder_with(directory / ".a.tmp", text), a,
                   failing_exchange(reason));
    EXPECT_EQ(contents(a / "file"), text);
  }
  EXPECT_THAT(directory.entries(), ElementsAre("a"));
}

TEST(ReplaceFolder, KeepsTheModeOfTheEarlierFolder) {
  const TestDirectory directory;
  const auto a = folder_with(directory / "a", "old");
  ASSERT_EQ(::chmod(a.c_str(), 0700), 0);
  replace_folder(folder_with(directory / ".a.tmp", "new"), a);
  EXPECT_EQ(mode_of(a), 0700u);
  EXPECT_EQ(contents(a / "file"), "new");
}

TEST(ReplaceFolder, KeepsBothFoldersAfterAnError) {
  const TestDirectory directory;
  const auto a = folder_with(directory / "a", "old");
  const auto from = folder_with(directory / ".a.tmp", "new");
  for (const int reason : {EIO, EACCES, EDQUOT})
    EXPECT_THAT(error_text<SystemError>(
                    [&] { replace_folder(from, a, failing_exchange(reason)); }),
                HasSubstr(std::strerror(reason)));
  // The second of the two renames fails: the first one is undone.
  const auto vanishing = [&](const auto&, const auto&) {
    std::filesystem::remove_all(from);
    errno = EINVAL;
    return -1;
  };
  EXPECT_THROW(replace_folder(from, a, vanishing), SystemError);
  EXPECT_EQ(contents(a / "file"), "old");
  EXPECT_THAT(directory.entries(), ElementsAre("a"));
  replace(directory / "f", "a file");
  EXPECT_THROW(replace_folder(folder_with(from, "new"), directory / "f"),
               SystemError);
  EXPECT_EQ(contents(directory / "f"), "a file");
}

}  // namespace
}  // namespace lockstep
