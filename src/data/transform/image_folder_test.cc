#include "lockstep/data/image_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/testing/error_text.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::string_view kHalf = "resize((4, 4), nearest)";

Image filled(const ImageSize& size, std::uint8_t value) {
  return {.size = size,
          .pixels = std::vector<std::uint8_t>(
              static_cast<std::size_t>(size.height * size.width * 3), value)};
}

class ImageFolderTest : public testing::Test {
 protected:
  ImageFolderTest() {
    std::string name = testing::TempDir() + "image-folder-XXXXXX";
    root_ = ::mkdtemp(name.data());
  }
  ~ImageFolderTest() override { fs::remove_all(root_); }

  void write(const fs::path& file, const std::vector<std::byte>& bytes) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  void add(const fs::path& file, std::uint8_t value = 0,
           const ImageSize& size = {8, 6}) const {
    write(file, encode_png(filled(size, value)));
  }
  ImageFolder folder(std::string_view transforms = kHalf) const {
    return ImageFolder(root_, Compose(transforms));
  }
  std::string refusal() const {
    return error_text<InvalidArgument>([this] { folder(); });
  }

  fs::path root_;
};

TEST_F(ImageFolderTest, HasTheClassesAndFilesInTheOrderOfTheirNames) {
  for (const char* file : {"dog/b.png", "dog/a.PNG", "cat/z/deep.png",
                           "cat/note.txt", "cat/y.png", "readme.txt"})
    add(file);
  const ImageFolder found = folder();
  EXPECT_THAT(found.class_names(), ElementsAre("cat", "dog"));
  std::vector<std::string> paths;
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < found.size(); ++i) {
    paths.push_back(found.path(i).lexically_relative(root_).string());
    labels.push_back(found.label(i));
  }
  EXPECT_THAT(paths, ElementsAre("cat/y.png", "cat/z/deep.png", "dog/a.PNG",
                                 "dog/b.png"));
  EXPECT_THAT(labels, ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(found.shape(), (ImageShape{3, 4, 4}));
}

// The order in which torchvision 0.28 lists these files.
TEST_F(ImageFolderTest, HasFilesBeforeThoseOfFoldersWithinAsTorchvision) {
  for (const char* file : {"c/b.png", "c/a/x.png", "c/a-b/y.png", "c/a/d/z.png",
                           "c/B.png", "c/z.png"})
    add(file);
  const ImageFolder found = folder();
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < found.size(); ++i)
    paths.push_back(found.path(i).lexically_relative(root_).string());
  EXPECT_THAT(paths, ElementsAre("c/B.png", "c/b.png", "c/z.png", "c/a/x.png",
                                 "c/a-b/y.png", "c/a/d/z.png"));
}

TEST_F(ImageFolderTest, TakesNamesOfAnyBytes) {
  add("c\xff/\xfe.png", 51);
  const ImageFolder found = folder();
  std::vector<float> image(48);
  EXPECT_EQ(found.read(0, 0, image), 0);
  EXPECT_EQ(image[0], 0.2f);
}

TEST_F(ImageFolderTest, TakesImagesWithoutLabelsAtAnyDepth) {
  for (const char* file : {"b.png", "a/z.png", "a/b/c.png"}) add(file, 51);
  const ImageFolder found(root_, Compose(kHalf), {.labelled = false});
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found.label(i), kNoLabel);
    paths.push_back(found.path(i).lexically_relative(root_).string());
  }
  EXPECT_THAT(paths, ElementsAre("b.png", "a/z.png", "a/b/c.png"));
  EXPECT_TRUE(found.class_names().empty());
  std::vector<float> image(48);
  EXPECT_EQ(found.read(2, 0, image), kNoLabel);
  EXPECT_EQ(image[47], 0.2f);
}

TEST_F(ImageFolderTest, WithoutLabelsMayBeOneFile) {
  add("a.png", 51);
  add("b.png", 7);
  const ImageFolder found(root_ / "a.png", Compose(kHalf), {.labelled = false});
  EXPECT_EQ(found.size(), 1);
  EXPECT_EQ(found.path(0), root_ / "a.png");
  std::vector<float> image(48);
  EXPECT_EQ(found.read(0, 0, image), kNoLabel);
  EXPECT_EQ(image[0], 0.2f);
  const auto before = fs::current_path();
  fs::current_path(root_);
  const ImageFolder here("a.png", Compose(kHalf), {.labelled = false});
  EXPECT_EQ(here.path(0), "a.png");
  here.read(0, 0, image);
  fs::current_path(before);
}

TEST_F(ImageFolderTest, HasAChecksumOfTheNamesOfClassesAndFiles) {
  for (const char* file : {"a/1.png", "a/2.png", "b/3.png"}) add(file);
  const auto sum = folder().listing_checksum();
  EXPECT_EQ(folder().listing_checksum(), sum);
  add("a/1.png", 7);
  EXPECT_EQ(folder().listing_checksum(), sum) << "contents do not count";
  fs::rename(root_ / "b/3.png", root_ / "b/4.png");
  const auto renamed = folder().listing_checksum();
  EXPECT_NE(renamed, sum);
  fs::rename(root_ / "b", root_ / "c");
  EXPECT_NE(folder().listing_checksum(), renamed);
  fs::rename(root_ / "c", root_ / "b");
  fs::rename(root_ / "a/2.png", root_ / "b/2.png");
  EXPECT_NE(folder().listing_checksum(), renamed);
}

TEST_F(ImageFolderTest, GivesTheLoaderBatches) {
  for (std::uint8_t i = 0; i < 5; ++i)
    add(fs::path(i < 2 ? "a" : "b") / (std::to_string(i) + ".png"),
        static_cast<std::uint8_t>(i * 51), {5 + i, 9});
  const ImageFolder found = folder();
  Loader loader(found, {4, 0, 2}, {.batch_size = 3});
  const auto batch = loader.next(Deadline::never());
  ASSERT_TRUE(batch.has_value());
  EXPECT_THAT(batch->labels(), ElementsAre(1, 0, 1));
  EXPECT_EQ(batch->images()[0], 0.8f);
  EXPECT_EQ(batch->images()[48], 0.0f);
  EXPECT_EQ(batch->images()[96], 0.4f);
}

// The decoder reads only what a first crop leaves; the pixels must be those of
// the whole image.
TEST_F(ImageFolderTest, GivesWhatComposeGivesOfTheWholeImage) {
  Image picture{.size = {60, 80}};
  for (std::size_t i = 0; i < 60 * 80 * 3; ++i)
    picture.pixels.push_back(static_cast<std::uint8_t>(i * i / 977));
  const std::vector<std::byte> jpeg = encode_jpeg(picture);
  write("a/picture.jpg", jpeg);
  const Compose compose(
      "random_resized_crop(16) | hflip | color_jitter(0.4, 0.4, 0.4, 0.1) | "
      "normalize(imagenet)");
  const ImageFolder found(root_, compose, {.seed = 5});
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    std::vector<float> read(3 * 16 * 16);
    found.read(0, epoch, read);
    std::vector<float> whole;
    compose.apply(decode_image(jpeg, "picture"),
                  {.seed = 5, .epoch = epoch, .index = 0}, whole);
    EXPECT_EQ(read, whole) << "epoch " << epoch;
  }
}

TEST_F(ImageFolderTest, GivesPixelsAndTheirNumbersWhereOnlyNormalizeFollows) {
  write("a/picture.jpg", encode_jpeg(test_image({60, 80})));
  for (const ImageColor color : {ImageColor::kRgb, ImageColor::kGray}) {
    const std::string normalize =
        color == ImageColor::kRgb
            ? "normalize(imagenet) | normalize((0.1,), (2,))"
            : "normalize((0.1,), (2,))";
    const ImageFolder found(
        root_, Compose("random_resized_crop(16) | hflip | " + normalize),
        {.decode = {.color = color}, .seed = 5});
    const std::size_t channels = color == ImageColor::kRgb ? 3 : 1;
    ASSERT_EQ(found.levels().size(), channels * kPixelValues);
    std::vector<float> numbers(channels * 256);
    std::vector<std::uint8_t> pixels(channels * 256);
    for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
      EXPECT_EQ(found.read(0, epoch, numbers), 0);
      EXPECT_EQ(found.read_pixels(0, epoch, pixels), 0);
      for (std::size_t i = 0; i < pixels.size(); ++i)
        ASSERT_EQ(numbers[i],
                  found.levels()[i / 256 * kPixelValues + pixels[i]]);
    }
  }
}

TEST_F(ImageFolderTest, HasNoPixelsWhereNumbersAreErased) {
  add("a/a.png");
  const ImageFolder found = folder("center_crop(4) | random_erasing(1)");
  EXPECT_TRUE(found.levels().empty());
  std::vector<std::uint8_t> pixels(48);
  EXPECT_THROW(found.read_pixels(0, 0, pixels), InvalidArgument);
}

TEST_F(ImageFolderTest, WithoutClassesIsRefused) {
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr(root_.string()), HasSubstr("it has no folders")));
}

TEST_F(ImageFolderTest, WithAClassWithoutImagesIsRefused) {
  add("full/a.png");
  fs::create_directory(root_ / "empty");
  EXPECT_THAT(refusal(), AllOf(HasSubstr((root_ / "empty").string()),
                               HasSubstr("no JPEG or PNG file")));
}

TEST_F(ImageFolderTest, WithoutImagesOrLabelsIsRefused) {
  EXPECT_THAT(error_text<InvalidArgument>([this] {
                ImageFolder(root_, Compose(kHalf), {.labelled = false});
              }),
              AllOf(HasSubstr("cannot use " + root_.string() + ": it has no"),
                    HasSubstr("next:    name a folder that holds .jpg")));
}

TEST_F(ImageFolderTest, WithImagesOfAnotherKindIsRefused) {
  add("a/a.png");
  add("a/b.WebP");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("a/b.WebP"),
                    HasSubstr("found a .WebP file, expected JPEG or PNG"),
                    HasSubstr("next:    convert it")));
}

TEST_F(ImageFolderTest, ThatContainsItselfByALinkIsRefused) {
  add("a/a.png");
  fs::create_directory_symlink(root_ / "a", root_ / "a" / "loop");
  EXPECT_THAT(refusal(), HasSubstr("a symbolic link names a folder"));
}

TEST_F(ImageFolderTest, WithALinkThatCannotBeFollowedIsRefusedByName) {
  add("a/a.png");
  const auto message = [this] {
    return error_text<SystemError>([this] { folder(); });
  };
  fs::create_symlink("/nowhere/class", root_ / "b");
  EXPECT_THAT(message(), HasSubstr("cannot follow " + (root_ / "b").string()));
  fs::rename(root_ / "b", root_ / "a" / "b");
  EXPECT_THAT(message(), HasSubstr((root_ / "a" / "b").string()));
  fs::rename(root_ / "a" / "b", root_ / "a" / "b.png");
  EXPECT_EQ(folder().size(), 2) << "reading it names it";
}

TEST_F(ImageFolderTest, ReadsNoFileThatIsTooLargeForAnImage) {
  write("a/huge.png", {});
  fs::resize_file(root_ / "a/huge.png", std::uintmax_t{1} << 40);
  const ImageFolder found(root_, Compose(kHalf),
                          {.decode = {.max_pixels = 1000}});
  std::vector<float> image(48);
  EXPECT_THAT(
      error_text<InvalidArgument>([&] { found.read(0, 0, image); }),
      AllOf(HasSubstr("a/huge.png: it has more than"), HasSubstr("next:")));
}

TEST_F(ImageFolderTest, ThatDoesNotExistIsRefusedByName) {
  EXPECT_THAT(error_text<SystemError>(
                  [this] { ImageFolder(root_ / "none", Compose(kHalf)); }),
              HasSubstr((root_ / "none").string()));
}

TEST_F(ImageFolderTest, NeedsTransformsToOneSize) {
  add("a/a.png");
  EXPECT_THAT(error_text<InvalidArgument>([this] { folder("resize(8)"); }),
              AllOf(HasSubstr("\"resize(size=8)\": the outputs differ in size"),
                    HasSubstr("center_crop")));
}

TEST_F(ImageFolderTest, NamesAFileThatIsTooSmallForATransform) {
  add("a/small.png", 0, {4, 6});
  const ImageFolder found = folder("random_crop(8)");
  std::vector<float> image(3 * 8 * 8);
  EXPECT_THAT(
      error_text<InvalidArgument>([&] { found.read(0, 0, image); }),
      AllOf(HasSubstr("cannot transform " + found.path(0).string() +
                      ": cannot crop 8 x 8 pixels out of an image of 4 x 6"),
            HasSubstr("next:    resize it first")));
}

TEST_F(ImageFolderTest, NamesADamagedFileAndReadsTheNextOne) {
  add("a/good.png", 255);
  write("a/bad.png", {});
  const ImageFolder found = folder();
  std::vector<float> image(48);
  EXPECT_THAT(error_text<InvalidArgument>([&] { found.read(0, 0, image); }),
              HasSubstr((root_ / "a" / "bad.png").string()));
  EXPECT_EQ(found.read(1, 0, image), 0);
  EXPECT_EQ(image[0], 1.0f);
}

TEST_F(ImageFolderTest, NamesAFileThatIsGone) {
  add("a/a.png");
  const ImageFolder found = folder();
  fs::remove(root_ / "a/a.png");
  std::vector<float> image(48);
  EXPECT_THAT(error_text<SystemError>([&] { found.read(0, 0, image); }),
              HasSubstr("a/a.png"));
  EXPECT_THAT(error_text<InvalidArgument>([&] { found.read(1, 0, image); }),
              HasSubstr("has no image 1"));
}

}  // namespace
}  // namespace lockstep
