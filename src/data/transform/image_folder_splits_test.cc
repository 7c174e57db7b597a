#include "src/data/transform/image_folder_splits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/data/known_datasets.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class ImageFolderSplits : public testing::Test {
 protected:
  void add(const std::string& file) const {
    write(file, encode_png(test_image({8, 6})));
  }
  void write(const std::string& file, const ImageFile& bytes) const {
    const fs::path path = directory_ / file;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }
  FolderSplits splits() const {
    return load_folder_splits(
        root(), {.train_transforms = "random_resized_crop(4)", .size = 4});
  }
  // The folder from which the samples come.
  static std::string folder_of(const ImageFolder& samples) {
    return samples.path(0).parent_path().parent_path().filename();
  }
  std::string measured() const {
    return folder_of(*load_folder_split(root(), Split::kTest, 4).samples);
  }
  const fs::path& root() const { return directory_.path(); }

  TestDirectory directory_{};
};

TEST_F(ImageFolderSplits, AreTheFoldersThatHoldFoldersOfClasses) {
  EXPECT_THAT(split_folders(root()), IsEmpty());
  EXPECT_THAT(split_folders(directory_ / "none"), IsEmpty());
  add("test/cat/a.png");
  add("val/a.png");  // a class of that name
  add("other/cat/a.png");
  EXPECT_THAT(split_folders(root()), ElementsAre("test"));
  add("train/cat/a.png");
  add("val/cat/a.png");
  EXPECT_THAT(split_folders(root()), ElementsAre("train", "val", "test"));
}

TEST_F(ImageFolderSplits, OfARunAreTrainAndValOrElseTest) {
  add("train/cat/a.png");
  add("test/cat/a.png");
  EXPECT_EQ(folder_of(*splits().test), "test");
  fs::create_directory(directory_ / "val");
  EXPECT_EQ(folder_of(*splits().test), "test");
  add("val/cat/a.png");
  const FolderSplits found = splits();
  EXPECT_EQ(folder_of(*found.train), "train");
  EXPECT_EQ(folder_of(*found.test), "val");
  EXPECT_EQ(found.facts.title, kImageFolderTitle);
  EXPECT_EQ(found.facts.height, 4);
  EXPECT_THAT(found.facts.class_names, ElementsAre("cat"));
}

TEST_F(ImageFolderSplits, OfAnEvaluationAreTestOrElseVal) {
  add("train/cat/a.png");
  add("val/cat/a.png");
  EXPECT_EQ(measured(), "val");
  fs::create_directory(directory_ / "test");
  EXPECT_EQ(measured(), "val");
  add("test/cat/a.png");
  EXPECT_EQ(measured(), "test");
  EXPECT_EQ(folder_of(*load_folder_split(root(), Split::kTrain, 4).samples),
            "train");
}

TEST_F(ImageFolderSplits, MayCallValAlsoValidOrValidation) {
  add("train/cat/a.png");
  add("test/cat/a.png");
  for (const char* name : {"validation", "valid", "val"}) {
    add(std::string(name) + "/cat/a.png");
    const FolderSplits found = splits();
    EXPECT_EQ(found.test_folder, name) << "before test, the shorter name first";
    EXPECT_EQ(folder_of(*found.test), name);
    EXPECT_EQ(measured(), "test");
  }
  EXPECT_THAT(split_folders(root()),
              ElementsAre("train", "val", "valid", "validation", "test"));
  fs::remove_all(directory_ / "test");
  fs::remove_all(directory_ / "val");
  EXPECT_EQ(load_folder_split(root(), Split::kTest, 4).split, "valid");
}

TEST_F(ImageFolderSplits, ThatAreNotThereAreRefusedWithThoseThatAre) {
  EXPECT_THAT(error_text([&] { splits(); }),
              AllOf(HasSubstr(root().string()),
                    HasSubstr("it has no folder train that holds a folder per"),
                    HasSubstr("found:   none of the folders train, val, valid, "
                              "validation, test"),
                    HasSubstr("--data-dir")));
  add("train/a.png");
  add("val/cat/a.png");
  EXPECT_THAT(
      error_text([&] { splits(); }),
      HasSubstr("found:   train (without folders of classes), val\n  next: "));
  fs::remove_all(directory_ / "val");
  EXPECT_THAT(error_text([&] { measured(); }),
              HasSubstr("it has no folder test or val or valid or "
                        "validation that"));
  EXPECT_THAT(
      error_text([] { load_folder_split("/none", Split::kTest, 4); }),
      AllOf(HasSubstr("there is no folder \"/none\""), HasSubstr("next:")));
  EXPECT_THAT(error_text([] { load_folder_split("", Split::kTest, 4); }),
              AllOf(HasSubstr("without its place"), HasSubstr("--data-dir")));
}

TEST_F(ImageFolderSplits, ScaleImagesOfTrainingWhereAskedAndNoOthers) {
  for (const char* file : {"train/cat/a.jpg", "val/cat/a.jpg"})
    write(file, encode_jpeg(test_image({200, 160})));
  const auto splits = [&](DecodeScaling scaling) {
    return load_folder_splits(root(), {.train_transforms = evaluation_text(4),
                                       .train_scaling = scaling,
                                       .size = 4});
  };
  const auto pixels = [](const ImageFolder& samples) {
    std::vector<float> image(3 * 4 * 4);
    samples.read(0, 0, image);
    return image;
  };
  const FolderSplits exact = splits(DecodeScaling::kExact);
  const FolderSplits scaled = splits(DecodeScaling::kScaled);
  EXPECT_EQ(pixels(*exact.train), pixels(*exact.test));
  EXPECT_EQ(pixels(*scaled.test), pixels(*exact.test));
  EXPECT_NE(pixels(*scaled.train), pixels(*exact.train));
  EXPECT_EQ(pixels(*load_folder_split(root(), Split::kTrain, 4).samples),
            pixels(*exact.test));
}

TEST_F(ImageFolderSplits, WithDifferentClassesAreRefused) {
  for (const char* file : {"train/cat/a.png", "train/dog/a.png",
                           "val/cat/a.png", "val/dog/a.png", "val/owl/a.png"})
    add(file);
  EXPECT_THAT(error_text([&] { splits(); }),
              AllOf(HasSubstr(root().string()),
                    HasSubstr("the class \"owl\": val has it, train does not"),
                    HasSubstr("next:")));
  fs::remove_all(directory_ / "val/cat");
  EXPECT_THAT(error_text([&] { splits(); }),
              HasSubstr("the class \"cat\": train has it, val does not"));
}

TEST_F(ImageFolderSplits, AreNormalisedOnceAndBeforeErasing) {
  const Normalize imagenet = imagenet_normalize();
  EXPECT_EQ(normalized("hflip | random_erasing", imagenet).text(),
            normalized("hflip | normalize(imagenet) | random_erasing", imagenet)
                .text());
  for (const char* text :
       {"hflip | normalize((0.5,), (1,))",
        "normalize(imagenet) | normalize(imagenet)",
        "normalize(imagenet) | random_erasing | normalize(imagenet)"})
    EXPECT_THAT(error_text([&] { normalized(text, imagenet); }),
                AllOf(HasSubstr(text), HasSubstr("leave normalize out")));
}

TEST_F(ImageFolderSplits, AreAsLargeAsTransformsCanMakeThem) {
  EXPECT_EQ(evaluation_text(224), "resize(256) | center_crop(224)");
  EXPECT_EQ(evaluation_text(kMostImageSide),
            "resize(65535) | center_crop(57343)");
  EXPECT_NO_THROW(Compose(evaluation_text(kMostImageSide)));
  EXPECT_THAT(error_text([] { Compose(evaluation_text(kMostImageSide + 1)); }),
              HasSubstr("65535 pixels"));
}

TEST_F(ImageFolderSplits, WithoutLabelsAreLikeTheImagesOfAModel) {
  add("a.png");
  add("deep/b.png");
  ImageDataset like = describe_dataset("mnist");
  like.channels = 1;
  like.height = like.width = 28;
  const FolderImages found = load_unlabelled_folder(root(), like);
  EXPECT_EQ(found.samples->shape(), (ImageShape{1, 28, 28}));
  EXPECT_EQ(found.facts.count, 2);
  EXPECT_EQ(found.facts.title, root().string());
  EXPECT_THAT(found.samples->class_names(), IsEmpty());
}

}  // namespace
}  // namespace lockstep
