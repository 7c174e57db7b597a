#include "apps/download/present_files.h"

#include <gmock/gmock.h>

#include <array>
#include <fstream>
#include <string>
#include <vector>

#include "apps/download/checksum.h"
#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/data/testing/idx_samples.h"
#include "src/net/testing/another_user.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Labels of Fashion-MNIST, of which three are the right file.
class PresentFiles : public testing::Test {
 protected:
  PresentFiles() {
    write("right", plain_);
    md5_ = md5_of_file(folder_ / "right");
    fs::remove(folder_ / "right");
    contents_ = {KnownFile{"train-labels-idx1-ubyte", plain_.size(), md5_}};
  }

  void write(const fs::path& name, const FileBytes& bytes) const {
    fs::create_directories((folder_ / name.string()).parent_path());
    std::ofstream(folder_ / name.string(), std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  std::optional<fs::path> found(WrongFiles wrong = WrongFiles::kRefuse) const {
    return find_right_file(places_of_files({.name = "fashion-mnist",
                                            .base = {},
                                            .files = files_,
                                            .contents = contents_},
                                           folder_.path())
                               .front(),
                           wrong);
  }

  TestDirectory folder_;
  FileBytes plain_ = idx_file({3}, {9, 0, 4});
  FileBytes cut_{plain_.begin(), plain_.end() - 1};
  std::string md5_;
  std::vector<KnownFile> contents_;
  std::vector<KnownFile> files_{
      KnownFile{"train-labels-idx1-ubyte.gz", 1, "of no file"}};
};

TEST_F(PresentFiles, AreThoseThatTrainingReads) {
  EXPECT_EQ(found(), std::nullopt);
  const std::string inner = "FashionMNIST/raw/train-labels-idx1-ubyte";
  write(inner + ".gz", gzip(plain_));
  EXPECT_EQ(found(), folder_ / (inner + ".gz"));
  write(inner, cut_);  // training reads this one
  EXPECT_EQ(found(), std::nullopt);
  write("train-labels-idx1-ubyte.gz", gzip(plain_));
  EXPECT_EQ(found(), folder_ / "train-labels-idx1-ubyte.gz");
  write("train-labels-idx1-ubyte", plain_);
  EXPECT_EQ(found(), folder_ / "train-labels-idx1-ubyte");
}

TEST_F(PresentFiles, AreRefusedWhereTrainingReadsAWrongOneFirst) {
  write("train-labels-idx1-ubyte.gz", gzip(plain_));
  write("train-labels-idx1-ubyte", cut_);
  EXPECT_THAT(error_text<Error>([&] { found(WrongFiles::kReplace); }),
              AllOf(HasSubstr("would read it instead of"), HasSubstr("next:")));
}

TEST_F(PresentFiles, ReplaceNoFolder) {
  fs::create_directory(folder_ / "train-labels-idx1-ubyte.gz");
  EXPECT_THAT(error_text<Error>([&] { found(WrongFiles::kReplace); }),
              AllOf(HasSubstr("is a folder"), HasSubstr("next:")));
}

TEST_F(PresentFiles, ThatCannotBeReadAreNamedWithTheNextStep) {
  LOCKSTEP_NEEDS_ROOT();
  write("train-labels-idx1-ubyte", plain_);
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(folder_ / "train-labels-idx1-ubyte", fs::perms::none);
  const AnotherUser other;
  EXPECT_THAT(error_text<Error>([&] { found(); }),
              AllOf(HasSubstr("cannot be read: Permission denied"),
                    HasSubstr("next:")));
}

TEST_F(PresentFiles, AreNamedWithoutControlCharacters) {
  const fs::path folder = folder_ / "a\033[2J";
  fs::create_directory(folder);
  FilePlaces places{
      .paths = {folder / "b"}, .target = folder / "b", .file = &files_.front()};
  write(places.target.lexically_relative(folder_.path()), cut_);
  EXPECT_THAT(
      error_text<Error>([&] { find_right_file(places, WrongFiles::kRefuse); }),
      HasSubstr("a?[2J/b is another file"));
}

}  // namespace
}  // namespace lockstep
