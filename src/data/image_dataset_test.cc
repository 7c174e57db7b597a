#include "lockstep/data/image_dataset.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/data/testing/cifar_samples.h"
#include "src/data/testing/idx_samples.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class ImageDatasetFiles : public testing::Test {
 protected:
  void write(const fs::path& name, const FileBytes& bytes) {
    fs::create_directories((directory_ / name).parent_path());
    std::ofstream(directory_ / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
  }

  std::string message(std::string_view dataset = "fashion-mnist") {
    return error_text(
        [&] { load_dataset(dataset, Split::kTrain, directory_); });
  }

  const TestDirectory made_;
  fs::path directory_ = made_.path();
  FileBytes images_ = idx_file({3, 2, 2}, counting(12));
  FileBytes labels_ = idx_file({3}, {9, 0, 4});
};

TEST_F(ImageDatasetFiles, AreLoadedPlainOrCompressed) {
  write("train-images-idx3-ubyte", images_);
  write("train-labels-idx1-ubyte.gz", gzip(labels_));
  const ImageDataset set =
      load_dataset("fashion-mnist", Split::kTrain, directory_);
  EXPECT_EQ(set.title, "Fashion-MNIST");
  EXPECT_EQ(set.count, 3);
  EXPECT_EQ(set.channels, 1);
  EXPECT_EQ(set.height, 2);
  EXPECT_EQ(set.width, 2);
  EXPECT_THAT(set.image(1), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(set.labels, ElementsAre(9, 0, 4));
  EXPECT_EQ(set.class_names[9], "Ankle boot");
}

TEST_F(ImageDatasetFiles, AreFoundInTorchvisionsFolders) {
  write("MNIST/raw/train-images-idx3-ubyte", images_);
  write("MNIST/raw/train-labels-idx1-ubyte", labels_);
  EXPECT_EQ(load_dataset("mnist", Split::kTrain, directory_).count, 3);
}

TEST_F(ImageDatasetFiles, OfTheTestSplitAreOtherFiles) {
  write("t10k-images-idx3-ubyte", images_);
  write("t10k-labels-idx1-ubyte", labels_);
  EXPECT_EQ(load_dataset("mnist", Split::kTest, directory_).count, 3);
  EXPECT_THAT(message("mnist"), HasSubstr("no file train-images-idx3-ubyte"));
}

TEST_F(ImageDatasetFiles, MustHaveAsManyLabelsAsImages) {
  write("train-images-idx3-ubyte", images_);
  write("train-labels-idx1-ubyte", idx_file({2}, {1, 2}));
  EXPECT_THAT(message(),
              AllOf(HasSubstr("train-labels-idx1-ubyte: labels and images do "
                              "not match"),
                    HasSubstr("offset:   4"), HasSubstr("expected: 3 labels"),
                    HasSubstr("found:    2")));
}

TEST_F(ImageDatasetFiles, MustHaveLabelsOfKnownClasses) {
  write("train-images-idx3-ubyte", images_);
  write("train-labels-idx1-ubyte", idx_file({3}, {1, 2, 10}));
  EXPECT_THAT(message(),
              AllOf(HasSubstr("offset:   10\n"), HasSubstr("expected: 0 to 9"),
                    HasSubstr("found:    10")));
}

TEST_F(ImageDatasetFiles, MustNotBeEmpty) {
  write("train-images-idx3-ubyte", idx_file({0, 28, 28}, {}));
  write("train-labels-idx1-ubyte", idx_file({0}, {}));
  EXPECT_THAT(message(), AllOf(HasSubstr("no pixels"),
                               HasSubstr("found:    0 x 28 x 28")));
}

TEST_F(ImageDatasetFiles, ThatAreMissingAreNamedWithPackageAndFlag) {
  EXPECT_THAT(message(),
              AllOf(HasSubstr(directory_.string()),
                    HasSubstr("train-images-idx3-ubyte.gz"),
                    HasSubstr("apt-get install dataset-fashion-mnist"),
                    HasSubstr("--data-dir")));
}

TEST_F(ImageDatasetFiles, InAMissingDirectoryAreNamedWithPackageAndFlag) {
  directory_ /= "not-here";
  EXPECT_THAT(message(),
              AllOf(HasSubstr("no directory " + directory_.string()),
                    HasSubstr("apt-get install dataset-fashion-mnist"),
                    HasSubstr("--data-dir")));
  EXPECT_THAT(message("mnist"),
              AllOf(HasSubstr("--data-dir"),
                    testing::Not(HasSubstr("apt-get install"))));
}

TEST_F(ImageDatasetFiles, OfCifar10AreFiveForTrainingAndOneForTests) {
  const fs::path folder = "cifar-10-batches-bin";
  for (std::uint8_t i = 1; i <= 5; ++i)
    write(folder / fmt::format("data_batch_{}.bin", i), cifar_file({{i}, {9}}));
  const ImageDataset set = load_dataset("cifar10", Split::kTrain, directory_);
  EXPECT_EQ(set.count, 10);
  EXPECT_EQ(std::vector({set.channels, set.height, set.width}),
            (std::vector<std::int64_t>{3, 32, 32}));
  EXPECT_THAT(set.labels, ElementsAre(1, 9, 2, 9, 3, 9, 4, 9, 5, 9));
  EXPECT_THAT(set.image(3), testing::Each(2));
  EXPECT_EQ(set.class_names[9], "truck");
  EXPECT_EQ(set.mean.size(), 3u);
  EXPECT_EQ(set.standard_deviation.size(), 3u);
  EXPECT_THAT(
      error_text([&] { load_dataset("cifar10", Split::kTest, directory_); }),
      AllOf(HasSubstr("no file test_batch.bin in directory"),
            HasSubstr("the binary version of CIFAR-10"),
            HasSubstr("cifar-10-batches-bin"), HasSubstr("--data-dir")));
}

TEST_F(ImageDatasetFiles, OfCifar100AreOneForEachSplit) {
  write("train.bin", cifar_file({{0, 99}}));
  write("test.bin", cifar_file({{0, 1}, {19, 2}}));
  const ImageDataset set = load_dataset("cifar100", Split::kTrain, directory_);
  EXPECT_THAT(set.labels, ElementsAre(99));
  EXPECT_EQ(set.class_names.size(), 100u);
  EXPECT_EQ(set.class_names[99], "worm");
  EXPECT_EQ(load_dataset("cifar100", Split::kTest, directory_).count, 2);
}

TEST(ImageDataset, OfAnUnknownNameListsTheKnownOnes) {
  for (const auto& ask : std::vector<std::function<void()>>{
           [] { load_dataset("fashon-mnist", Split::kTrain); },
           [] { default_data_directory("fashon-mnist"); }}) {
    try {
      ask();
      FAIL() << "no error";
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(),
                   "unknown dataset \"fashon-mnist\": did you mean "
                   "\"fashion-mnist\"? Known: fashion-mnist, mnist, cifar10, "
                   "cifar100");
    }
  }
}

TEST(ImageDataset, OfDebiansPackageHasTheStatedMeanAndDeviation) {
  if (!fs::exists(default_data_directory("fashion-mnist")))
    GTEST_SKIP() << "the package dataset-fashion-mnist is not installed";
  EXPECT_EQ(load_dataset("fashion-mnist", Split::kTest).count, 10'000);
  const ImageDataset set = load_dataset("fashion-mnist", Split::kTrain);
  EXPECT_EQ(set.count, 60'000);
  EXPECT_EQ(set.image_elements(), 28 * 28);
  double sum = 0;
  double squares = 0;
  for (const std::uint8_t pixel : set.images) {
    const double value = pixel / 255.0;
    sum += value;
    squares += value * value;
  }
  const auto count = static_cast<double>(set.images.size());
  const double mean = sum / count;
  EXPECT_NEAR(mean, set.mean[0], 5e-5);
  EXPECT_NEAR(std::sqrt(squares / count - mean * mean),
              set.standard_deviation[0], 5e-5);
}

}  // namespace
}  // namespace lockstep
