#include "apps/download/partial_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/file_size_limit.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/net/testing/another_user.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void append(PartialFile& file, std::string_view text) {
  file.append(std::as_bytes(std::span(text)));
}

TEST(PartialFile, TakesItsNameWhenItIsFinished) {
  const TestDirectory folder;
  std::ofstream(folder / "data") << "an older file";
  const int number =
      FileDescriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)).get();
  PartialFile file(folder / "data");
  append(file, "ab");
  append(file, "c");
  EXPECT_EQ(contents(folder / "data"), "an older file");
  EXPECT_EQ(contents(folder / "data.part"), "abc");
  file.finish();
  EXPECT_EQ(contents(folder / "data"), "abc");
  EXPECT_THAT(folder.entries(), ElementsAre("data"));
  const FileDescriptor lowest(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(lowest.get(), number) << "the finished file is still open";
}

TEST(PartialFile, GoesOnFromWhatAnotherOneLeft) {
  const TestDirectory folder;
  {
    PartialFile stopped(folder / "data");
    append(stopped, "abc");
  }
  PartialFile file(folder / "data");
  EXPECT_EQ(file.size(), 3u);
  append(file, "d");
  EXPECT_EQ(contents(file.path()), "abcd");
  file.restart();
  append(file, "e");
  EXPECT_EQ(contents(file.path()), "e");
  file.remove();
  EXPECT_THAT(folder.entries(), IsEmpty());
}

TEST(PartialFile, IsOfOneWriter) {
  const TestDirectory folder;
  {
    const PartialFile first(folder / "data");
    EXPECT_THAT(
        error_text<Error>([&] { PartialFile second(folder / "data"); }),
        AllOf(HasSubstr("data.part is being written by"),
              HasSubstr(std::to_string(::getpid())), HasSubstr("next:")));
  }
  const PartialFile later(folder / "data");
}

TEST(PartialFile, FollowsNoLinkAndOpensNoFolder) {
  const TestDirectory folder;
  std::ofstream(folder / "other") << "kept";
  fs::create_symlink(folder / "other", folder / "data.part");
  EXPECT_THAT(error_text<Error>([&] { PartialFile file(folder / "data"); }),
              HasSubstr("data.part"));
  EXPECT_EQ(contents(folder / "other"), "kept");
  fs::create_directory(folder / "folder.part");
  EXPECT_THAT(error_text<Error>([&] { PartialFile file(folder / "folder"); }),
              HasSubstr("folder.part"));
}

TEST(PartialFile, WritesNoFileWithAnotherNameAndNoSocket) {
  const TestDirectory folder;
  std::ofstream(folder / "other") << "kept";
  fs::create_hard_link(folder / "other", folder / "data.part");
  EXPECT_THAT(error_text<Error>([&] { PartialFile file(folder / "data"); }),
              AllOf(HasSubstr("has another name"), HasSubstr("move it away")));
  EXPECT_EQ(contents(folder / "other"), "kept");
  ASSERT_EQ(::mknod((folder / "s.part").c_str(), S_IFSOCK | 0600, 0), 0);
  EXPECT_THAT(error_text<Error>([&] { PartialFile file(folder / "s"); }),
              AllOf(HasSubstr("not a regular file"), HasSubstr("move it")));
}

TEST(PartialFile, IsRemovedUnlessAProcessWritesIt) {
  const TestDirectory folder;
  remove_part_of(folder / "data");
  EXPECT_THAT(folder.entries(), IsEmpty());
  {
    const PartialFile written(folder / "data");
    remove_part_of(folder / "data");
    EXPECT_THAT(folder.entries(), ElementsAre("data.part"));
  }
  remove_part_of(folder / "data");
  EXPECT_THAT(folder.entries(), IsEmpty());
}

TEST(PartialFile, KeepsWhatItHasWhenTheDiskIsFull) {
  const TestDirectory folder;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(folder, "64k");
  PartialFile file(folder / "data");
  append(file, "abc");
  const std::string large(200'000, 'x');
  EXPECT_THAT(
      error_text<Error>([&] { append(file, large); }),
      AllOf(HasSubstr("cannot write"), HasSubstr("No space left on device"),
            HasSubstr("next:    free space")));
  EXPECT_GE(file.size(), 3u);
  EXPECT_EQ(fs::file_size(file.path()), file.size());
}

TEST(PartialFile, RespectsTheLimitOnTheSizeOfFiles) {
  const TestDirectory folder;
  PartialFile file(folder / "data");
  const FileSizeLimit limit(1000);
  const std::string large(1001, 'x');
  EXPECT_THAT(error_text<Error>([&] { append(file, large); }),
              HasSubstr("ulimit -f"));
}

TEST(PartialFile, NamesAFolderThatCannotBeWritten) {
  LOCKSTEP_NEEDS_ROOT();
  const TestDirectory folder;
  const AnotherUser other;
  EXPECT_THAT(error_text<Error>([&] { PartialFile file(folder / "data"); }),
              AllOf(HasSubstr("Permission denied"), HasSubstr("--data-dir")));
  EXPECT_THAT(error_text<Error>([&] { make_folder(folder / "a/b"); }),
              AllOf(HasSubstr("cannot make the folder"),
                    HasSubstr("Permission denied")));
}

TEST(PartialFile, HasAFolderThatIsMadeBefore) {
  const TestDirectory folder;
  make_folder(folder / "a/b/");
  make_folder(folder / "a/b");
  EXPECT_TRUE(fs::is_directory(folder / "a/b"));
  std::ofstream(folder / "file") << "kept";
  for (const char* name : {"file", "file/below"})
    EXPECT_THAT(error_text<Error>([&] { make_folder(folder / name); }),
                HasSubstr("next:"))
        << name;
  fs::create_symlink(folder / "nowhere", folder / "link");
  EXPECT_THAT(error_text<Error>([&] { make_folder(folder / "link"); }),
              HasSubstr("leads to no folder"));
}

}  // namespace
}  // namespace lockstep
