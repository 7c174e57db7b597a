#include "apps/download/unpack.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "apps/download/testing/archive_file.h"
#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr std::array kFiles{KnownFile{"train.bin", 5, ""},
                            KnownFile{"test.bin", 3, ""}};

class Unpack : public testing::Test {
 protected:
  Unpack() { fs::create_directory(target()); }

  fs::path target() const { return folder_ / "target"; }

  void write(const std::vector<ArchiveItem>& items) const {
    ArchiveFile file(folder_ / "a.tar.gz");
    for (const ArchiveItem& item : items) file.add(item);
    file.close();
  }

  void unpack() const {
    unpack_tar_gzip(folder_ / "a.tar.gz", "inner", kFiles, target());
  }

  // What is wrong with an archive that has `item` between the right files.
  std::string refusal(const ArchiveItem& item) const {
    write({{.path = "inner/train.bin", .contents = "train"},
           item,
           {.path = "inner/test.bin", .contents = "abc"}});
    std::string text = error_text<Error>([&] { unpack(); });
    EXPECT_THAT(folder_.entries(), UnorderedElementsAre("target", "a.tar.gz"));
    EXPECT_TRUE(fs::is_empty(target())) << text;
    return text;
  }

  TestDirectory folder_;
};

TEST_F(Unpack, WritesTheExpectedFilesAlone) {
  std::ofstream(target() / "test.bin") << "an older file";
  write({{.path = "inner/", .type = AE_IFDIR},
         {.path = "./inner/test.bin", .contents = "abc"},
         {.path = "inner/readme.html", .contents = "<html>"},
         {.path = "train.bin", .contents = "outer"},
         {.path = "inner/train.bin", .contents = "train"}});
  unpack();
  EXPECT_EQ(contents(target() / "train.bin"), "train");
  EXPECT_EQ(contents(target() / "test.bin"), "abc");
  EXPECT_EQ(
      std::distance(fs::directory_iterator(target()), fs::directory_iterator()),
      2);
}

TEST_F(Unpack, RefusesAPathThatLeadsOutside) {
  for (const char* path :
       {"../evil", "inner/../../evil", "/evil", "inner/../../target/train.bin"})
    EXPECT_THAT(refusal({.path = path, .contents = "evil"}),
                AllOf(HasSubstr("leads out of the folder"), HasSubstr("next:")))
        << path;
}

TEST_F(Unpack, RefusesLinksAndDevices) {
  EXPECT_THAT(
      refusal({.path = "inner/a", .type = AE_IFLNK, .link = "/etc/passwd"}),
      HasSubstr("is a link or a device"));
  EXPECT_THAT(refusal({.path = "inner/a", .hardlink = "inner/train.bin"}),
              HasSubstr("is a link or a device"));
  EXPECT_THAT(refusal({.path = "inner/a", .type = AE_IFIFO}),
              HasSubstr("is a link or a device"));
}

TEST_F(Unpack, RefusesALinkInThePlaceOfAFile) {
  write({{.path = "inner/train.bin", .type = AE_IFLNK, .link = "../../evil"},
         {.path = "inner/test.bin", .contents = "abc"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }),
              HasSubstr("train.bin is not a regular file"));
  write({{.path = "inner/test.bin", .contents = "abc"},
         {.path = "inner/train.bin", .hardlink = "inner/test.bin"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }),
              HasSubstr("train.bin is not a regular file"));
  EXPECT_TRUE(fs::is_empty(target()));
}

TEST_F(Unpack, RefusesOtherSizes) {
  write({{.path = "inner/train.bin", .contents = "larger"},
         {.path = "inner/test.bin", .contents = "abc"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }),
              HasSubstr("train.bin has 6 bytes, but the right file has 5"));
  EXPECT_THAT(refusal({.path = "inner/huge",
                       .contents = std::string(std::size_t{2} << 20, 'x')}),
              HasSubstr("\"inner/huge\" is larger"));
}

TEST_F(Unpack, RefusesAFileThatIsTwiceInItOrMissing) {
  EXPECT_THAT(refusal({.path = "inner/train.bin", .contents = "TRAIN"}),
              HasSubstr("train.bin is twice in it"));
  write({{.path = "inner/train.bin", .contents = "train"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }),
              HasSubstr("inner/test.bin is missing"));
  EXPECT_TRUE(fs::is_empty(target()));
}

TEST_F(Unpack, RefusesADamagedArchive) {
  write({{.path = "inner/train.bin", .contents = "train"},
         {.path = "inner/test.bin", .contents = "abc"}});
  const fs::path archive = folder_ / "a.tar.gz";
  const std::string whole = contents(archive);
  for (const std::string& damaged :
       {std::string("no archive"), whole.substr(0, whole.size() / 2),
        std::string()}) {
    std::ofstream(archive, std::ios::binary) << damaged;
    EXPECT_THAT(error_text<Error>([&] { unpack(); }),
                HasSubstr("cannot unpack"));
    EXPECT_THAT(error_text([&] { unpack(); }), HasSubstr("another error"))
        << "the user's arguments are not at fault";
    EXPECT_TRUE(fs::is_empty(target()));
  }
}

TEST_F(Unpack, LeavesNoPartsWhenAFileCannotTakeItsName) {
  fs::create_directories(target() / "train.bin/a");
  write({{.path = "inner/train.bin", .contents = "train"},
         {.path = "inner/test.bin", .contents = "abc"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }), HasSubstr("train.bin"));
  EXPECT_FALSE(fs::exists(target() / "train.bin.part"));
  EXPECT_FALSE(fs::exists(target() / "test.bin.part"));
}

TEST_F(Unpack, LeavesWhatWasThereWhenItFails) {
  std::ofstream(target() / "train.bin") << "mine";
  write({{.path = "inner/train.bin", .contents = "train"}});
  EXPECT_THAT(error_text<Error>([&] { unpack(); }), HasSubstr("missing"));
  EXPECT_EQ(contents(target() / "train.bin"), "mine");
}

}  // namespace
}  // namespace lockstep
