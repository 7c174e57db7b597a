#include "src/data/transform/transformed_images.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two images of 2 x 3 pixels, whose channels are 0, 1, …; 40, …; 80, ….
ImageDataset small_set() {
  ImageDataset set{.title = "Small",
                   .count = 2,
                   .channels = 3,
                   .height = 2,
                   .width = 3,
                   .images = {},
                   .labels = {4, 7},
                   .class_names = {},
                   .mean = {0, 0, 0},
                   .standard_deviation = {1, 1, 1}};
  for (int image = 0; image < 2; ++image)
    for (int channel = 0; channel < 3; ++channel)
      for (int i = 0; i < 6; ++i)
        set.images.push_back(
            static_cast<std::uint8_t>(100 * image + 40 * channel + i));
  return set;
}

TEST(TransformedImages, TransformsTheImagesOfADataset) {
  const ImageDataset set = small_set();
  const TransformedImages samples(set, Compose("hflip(1)"), 0);
  EXPECT_EQ(samples.size(), 2);
  EXPECT_EQ(samples.shape(), (ImageShape{3, 2, 3}));
  std::vector<float> image(18);
  EXPECT_EQ(samples.read(1, 0, image), 7);
  for (float& value : image) value *= 255;
  EXPECT_THAT(image, ElementsAre(102, 101, 100, 105, 104, 103,  //
                                 142, 141, 140, 145, 144, 143,  //
                                 182, 181, 180, 185, 184, 183));
}

TEST(TransformedImages, DependOnSeedEpochAndIndexAlone) {
  const ImageDataset set = small_set();
  const auto read = [&](std::uint64_t seed, std::uint64_t epoch) {
    const TransformedImages samples(set, Compose("color_jitter(0.9)"), seed);
    std::vector<float> image(18);
    samples.read(0, epoch, image);
    return image;
  };
  EXPECT_EQ(read(1, 2), read(1, 2));
  EXPECT_NE(read(1, 2), read(2, 2));
  EXPECT_NE(read(1, 2), read(1, 3));
}

TEST(TransformedImages, HaveTheSizeThatTheTransformsMake) {
  const ImageDataset set = small_set();
  EXPECT_EQ(TransformedImages(set, Compose("resize((5, 4))"), 0).shape(),
            (ImageShape{3, 5, 4}));
}

TEST(TransformedImages, RefuseWhatCannotBeABatch) {
  const ImageDataset set = small_set();
  EXPECT_THAT(error_text<InvalidArgument>([&] {
                TransformedImages(
                    set, Compose("random_rotation(9, expand=True)"), 0);
              }),
              HasSubstr("outputs differ in size"));
  ImageDataset broken = set;
  broken.images.pop_back();
  EXPECT_THROW(TransformedImages(broken, Compose("hflip"), 0), InvalidArgument);
  const TransformedImages samples(set, Compose("hflip"), 0);
  std::vector<float> image(17);
  EXPECT_THROW(samples.read(0, 0, image), InvalidArgument);
  std::vector<float> whole(18);
  EXPECT_THROW(samples.read(2, 0, whole), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
