#include "apps/data/make_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <filesystem>
#include <map>
#include <set>

#include "lockstep/data/image_folder.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/small_file_system.h"
#include "src/base/testing/test_directory.h"
#include "src/base/text_file.h"
#include "src/data/data_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Shows a folder in its own place, as containers show a host's folders.
class BindMount {
 public:
  explicit BindMount(const fs::path& folder)
      : folder_(folder),
        mounted_(::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND,
                         nullptr) == 0) {}
  ~BindMount() {
    if (mounted_) {
      EXPECT_EQ(::umount2(folder_.c_str(), MNT_DETACH), 0);
    }
  }
  BindMount(const BindMount&) = delete;
  BindMount& operator=(const BindMount&) = delete;

  explicit operator bool() const { return mounted_; }

 private:
  fs::path folder_;
  bool mounted_;
};

MakeImagesOptions few(const fs::path& folder) {
  MakeImagesOptions options{
      .folder = folder.string(), .classes = 3, .count = 10, .size = 16};
  complete_make_images_options(options, 1);
  return options;
}

// The files below a folder, and their bytes.
std::map<std::string, std::vector<std::byte>> contents_of(
    const fs::path& folder) {
  std::map<std::string, std::vector<std::byte>> contents;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file())
      contents[entry.path().lexically_relative(folder).string()] =
          read_data_file(entry.path());
  return contents;
}

TEST(MakeImages, WritesFoldersThatImageFolderReads) {
  const TestDirectory directory;
  const std::string report = make_images(few(directory / "new/shapes"));
  EXPECT_THAT(report, AllOf(HasSubstr("10 synthetic images"),
                            HasSubstr("3 classes"), HasSubstr("new/shapes")));
  const Compose transforms("resize((8, 8))");
  const ImageFolder train(directory / "new/shapes/train", transforms);
  const ImageFolder val(directory / "new/shapes/val", transforms);
  EXPECT_THAT(train.class_names(), ElementsAre("circle", "ring", "square"));
  EXPECT_THAT(val.class_names(), ElementsAre("circle", "ring", "square"));
  EXPECT_EQ(train.size(), 10);
  EXPECT_EQ(val.size(), 3);
  EXPECT_EQ(train.path(0).filename(), "circle_000000.jpg");
  std::vector<float> image(3 * 8 * 8);
  std::multiset<std::int64_t> labels;
  for (std::int64_t i = 0; i < train.size(); ++i)
    labels.insert(train.read(i, 0, image));
  EXPECT_THAT(labels, ElementsAre(0, 0, 0, 0, 1, 1, 1, 2, 2, 2));
  EXPECT_THAT(read_text_file(directory / "new/shapes/README.txt", 1000),
              AllOf(HasSubstr("are synthetic"),
                    HasSubstr("lockstep data make-images DIR --classes 3 "
                              "--count 10 --test-count 3 --size 16 --format "
                              "jpeg --seed 0")));
}

TEST(MakeImages, WritesTheSameBytesForTheSameSeed) {
  const TestDirectory directory;
  make_images(few(directory / "one"));
  MakeImagesOptions threads = few(directory / "other");
  threads.threads = 3;
  make_images(threads);
  MakeImagesOptions seed = few(directory / "third");
  seed.seed = 1;
  make_images(seed);
  const auto one = contents_of(directory / "one");
  EXPECT_EQ(one.size(), 14u);
  EXPECT_EQ(one, contents_of(directory / "other"));
  const auto third = contents_of(directory / "third");
  for (const auto& [name, bytes] : one) EXPECT_NE(bytes, third.at(name));
  // No two images are equal either.
  std::set<std::vector<std::byte>> images;
  for (const auto& [name, bytes] : one) images.insert(bytes);
  EXPECT_EQ(images.size(), one.size());
}

TEST(MakeImages, WritesPngFilesOfSizesAroundTheGivenOne) {
  const TestDirectory directory;
  MakeImagesOptions options = few(directory / "shapes");
  options.format = "png";
  options.test_count = 0;
  make_images(options);
  EXPECT_FALSE(fs::exists(directory / "shapes/val"));
  std::set<std::int64_t> sides;
  for (const auto& [name, bytes] : contents_of(directory / "shapes/train")) {
    EXPECT_TRUE(name.ends_with(".png"));
    const ImageSize size = image_size(bytes, name);
    sides.insert({size.height, size.width});
  }
  EXPECT_GE(*sides.begin(), 16);
  EXPECT_LE(*sides.rbegin(), 24);
  EXPECT_GT(sides.size(), 4u);
}

TEST(MakeImages, DividesImagesAsTheFlagsSay) {
  const auto test_count = [](MakeImagesOptions options) {
    options.folder = "x";
    complete_make_images_options(options, 1);
    return *options.test_count;
  };
  EXPECT_EQ(test_count({}), 500);
  EXPECT_EQ(test_count({.count = 20}), 10);
  EXPECT_EQ(test_count({.test_count = 12}), 12);
  EXPECT_EQ(test_count({.test_count = 0}), 0);
  EXPECT_EQ(test_count({.test_share = 0.25}), 1250);
  EXPECT_EQ(test_count({.test_share = 0}), 0);
  EXPECT_THAT(error_text([&] { test_count({.count = 9}); }),
              HasSubstr("--count is 9, but each of 10 classes"));
  EXPECT_THAT(error_text([&] { test_count({.test_count = 9}); }),
              HasSubstr("--test-count is 9"));
  EXPECT_THAT(error_text([&] { test_count({.test_share = 0.001}); }),
              HasSubstr("--test-share of --count is 5"));
}

TEST(MakeImages, FillsAnEmptyFolderAndRefusesOthers) {
  const TestDirectory directory;
  fs::create_directory(directory / "empty");
  make_images(few(directory / "empty/"));
  EXPECT_TRUE(fs::exists(directory / "empty/README.txt"));
  const auto before = contents_of(directory.path());
  EXPECT_THAT(error_text([&] { make_images(few(directory / "empty")); }),
              AllOf(HasSubstr("is not empty"), HasSubstr("next:")));
  EXPECT_THAT(
      error_text([&] { make_images(few(directory / "empty/README.txt")); }),
      AllOf(HasSubstr("cannot make a folder of images"),
            HasSubstr("README.txt is a file")));
  EXPECT_EQ(contents_of(directory.path()), before);
}

TEST(MakeImages, WritesWhereALinkLeads) {
  const TestDirectory directory;
  fs::create_directory(directory / "disk");
  fs::create_directory_symlink("disk", directory / "link");
  make_images(few(directory / "link"));
  EXPECT_TRUE(fs::is_symlink(directory / "link"));
  EXPECT_TRUE(fs::exists(directory / "disk/README.txt"));
}

TEST(MakeImages, SaysWhatCannotBeWritten) {
  const TestDirectory directory;
  replace_text_file(directory / "file", "");
  EXPECT_THAT(
      error_text<Error>([&] { make_images(few(directory / "file/x/shapes")); }),
      AllOf(HasSubstr("Not a directory"), HasSubstr("next:")));
}

TEST(MakeImages, RefusesBeforeTheWorkWhatCannotBeReplaced) {
  const TestDirectory directory;
  fs::create_directory_symlink("nowhere", directory / "link");
  // So many that the test would not end if they were drawn.
  MakeImagesOptions options = few(directory / "link");
  options.count = std::int64_t{1} << 40;
  EXPECT_THAT(
      error_text<Error>([&] { make_images(options); }),
      AllOf(HasSubstr("link to what does not exist"), HasSubstr("next:")));
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "64k");
  options.folder = directory.path();
  EXPECT_THAT(error_text<Error>([&] { make_images(options); }),
              AllOf(HasSubstr("mounted"), HasSubstr("a folder below it")));
}

TEST(MakeImages, RefusesABindMountBeforeTheWork) {
  const TestDirectory directory;
  fs::create_directory(directory / "shown");
  const BindMount mount(directory / "shown");
  if (!mount) GTEST_SKIP() << "a bind mount needs root";
  MakeImagesOptions options = few(directory / "shown");
  options.count = std::int64_t{1} << 40;
  EXPECT_THAT(error_text<Error>([&] { make_images(options); }),
              AllOf(HasSubstr((directory / "shown").string()),
                    HasSubstr("mounted"), HasSubstr("a folder below it")));
  make_images(few(directory / "shown/below"));
  EXPECT_TRUE(fs::exists(directory / "shown/below/README.txt"));
}

TEST(MakeImages, LeavesNothingOnAFullDisk) {
  const TestDirectory directory;
  LOCKSTEP_NEEDS_SMALL_FILE_SYSTEM(directory, "64k");
  MakeImagesOptions options = few(directory / "shapes");
  options.count = 1000;
  options.threads = 2;
  EXPECT_THAT(error_text<Error>([&] { make_images(options); }),
              AllOf(HasSubstr("No space left on device"),
                    HasSubstr("next:    make room")));
  EXPECT_THAT(directory.entries(), IsEmpty());
}

}  // namespace
}  // namespace lockstep
