#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/data/sample_random.h"

namespace lockstep {
namespace {

// `count` images whose pixels all differ, as far as 255 values allow; no pixel
// is black.
ImageDataset small_dataset(std::int64_t count, const ImageShape& shape) {
  const auto [channels, height, width] = shape;
  ImageDataset set{.title = "small",
                   .count = count,
                   .channels = channels,
                   .height = height,
                   .width = width,
                   .images = {},
                   .labels = {},
                   .class_names = {"a", "b", "c"},
                   .mean = std::vector<float>(channels, 0.0f),
                   .standard_deviation = std::vector<float>(channels, 1.0f)};
  for (std::int64_t i = 0; i < count * set.image_elements(); ++i)
    set.images.push_back(static_cast<std::uint8_t>(1 + i % 255));
  for (std::int64_t i = 0; i < count; ++i) set.labels.push_back(i % 3);
  return set;
}

std::vector<float> read(const ImageSamples& samples, std::int64_t index,
                        std::uint64_t epoch = 0) {
  const auto [channels, height, width] = samples.shape();
  std::vector<float> image(static_cast<std::size_t>(channels * height * width),
                           -1.0f);
  samples.read(index, epoch, image);
  return image;
}

// The naive version of an augmented image, given its crop.
std::vector<float> crop(const ImageDataset& set, std::int64_t index,
                        std::array<std::int64_t, 2> shift, bool mirrored) {
  std::vector<float> out;
  for (std::int64_t c = 0; c < set.channels; ++c)
    for (std::int64_t y = 0; y < set.height; ++y)
      for (std::int64_t x = 0; x < set.width; ++x) {
        const std::int64_t row = y + shift[0];
        const std::int64_t column =
            (mirrored ? set.width - 1 - x : x) + shift[1];
        const bool inside =
            row >= 0 && row < set.height && column >= 0 && column < set.width;
        const std::int64_t at = (c * set.height + row) * set.width + column;
        out.push_back(inside ? static_cast<float>(set.image(index)[at]) / 255.0f
                             : 0.0f);
      }
  return out;
}

TEST(ImageSamples, NormaliseEachChannelInFloat32) {
  ImageDataset set = small_dataset(2, {2, 1, 3});
  set.mean = {0.25f, 0.5f};
  set.standard_deviation = {0.5f, 0.2f};
  const ImageSamples samples(set);
  const std::vector<float> image = read(samples, 1);
  for (std::size_t i = 0; i < 6; ++i) {
    const float value = static_cast<float>(set.image(1)[i]) / 255.0f;
    EXPECT_EQ(image[i],
              (value - set.mean[i / 3]) / set.standard_deviation[i / 3]);
  }
}

TEST(ImageSamples, AreNotAugmentedUnlessAsked) {
  const ImageDataset set = small_dataset(5, {1, 4, 4});
  const ImageSamples samples(set);
  for (std::uint64_t epoch = 0; epoch < 10; ++epoch)
    EXPECT_EQ(read(samples, 3, epoch), crop(set, 3, {0, 0}, false));
}

TEST(ImageSamples, AreCroppedAndMirroredInEveryWayAndNoOther) {
  const ImageDataset set = small_dataset(1, {2, 5, 4});
  const ImageSamples samples(set, {.crop_padding = 2, .horizontal_flip = true});
  std::map<std::vector<float>, int> possible;
  for (std::int64_t row = -2; row <= 2; ++row)
    for (std::int64_t column = -2; column <= 2; ++column)
      for (const bool mirrored : {false, true})
        possible[crop(set, 0, {row, column}, mirrored)] = 0;
  ASSERT_EQ(possible.size(), 50u);
  constexpr int kEpochs = 10'000;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const auto found = possible.find(read(samples, 0, epoch));
    ASSERT_NE(found, possible.end()) << "epoch " << epoch;
    ++found->second;
  }
  // 200 of each are expected, with a deviation of 14.
  for (const auto& [image, times] : possible) EXPECT_NEAR(times, 200, 6 * 14);
}

TEST(ImageSamples, AreMirroredAloneWithoutPadding) {
  const ImageDataset set = small_dataset(1, {1, 2, 3});
  const ImageSamples samples(set, {.horizontal_flip = true});
  std::set<std::vector<float>> seen;
  for (std::uint64_t epoch = 0; epoch < 50; ++epoch)
    seen.insert(read(samples, 0, epoch));
  EXPECT_EQ(seen, (std::set<std::vector<float>>{crop(set, 0, {0, 0}, false),
                                                crop(set, 0, {0, 0}, true)}));
}

TEST(ImageSamples, RepeatForTheSameSeedEpochAndIndexOnly) {
  const ImageDataset set = small_dataset(64, {1, 8, 8});
  const auto all = [&](std::uint64_t seed, std::uint64_t epoch) {
    const ImageSamples samples(
        set, {.crop_padding = 2, .horizontal_flip = true, .seed = seed});
    std::vector<float> images;
    for (std::int64_t i = 0; i < set.count; ++i)
      for (const float pixel : read(samples, i, epoch)) images.push_back(pixel);
    return images;
  };
  EXPECT_EQ(all(1, 2), all(1, 2));
  EXPECT_NE(all(1, 2), all(2, 2));
  EXPECT_NE(all(1, 2), all(1, 3));
  EXPECT_NE(all(1, 2), all(2, 1));
}

TEST(ImageSamples, GiveThePixelsThatTheirNumbersStandFor) {
  ImageDataset set = small_dataset(7, {3, 6, 5});
  set.mean = {0.25f, 0.5f, 0.1f};
  set.standard_deviation = {0.5f, 0.2f, 0.3f};
  const ImageSamples samples(
      set, {.crop_padding = 2, .horizontal_flip = true, .seed = 4});
  const std::span<const float> levels = samples.levels();
  ASSERT_EQ(levels.size(), 3 * kPixelValues);
  for (std::uint64_t epoch = 0; epoch < 50; ++epoch)
    for (std::int64_t index = 0; index < set.count; ++index) {
      std::vector<std::uint8_t> pixels(3 * 6 * 5, 77);
      EXPECT_EQ(samples.read_pixels(index, epoch, pixels), index % 3);
      const std::vector<float> image = read(samples, index, epoch);
      for (std::size_t i = 0; i < image.size(); ++i)
        ASSERT_EQ(levels[i / 30 * kPixelValues + pixels[i]], image[i]);
    }
}

TEST(ImageSamples, ReturnTheLabel) {
  const ImageDataset set = small_dataset(3, {1, 1, 1});
  std::vector<float> image(1);
  EXPECT_EQ(ImageSamples(set).read(2, 0, image), 2);
}

TEST(ImageSamples, RefuseADatasetWhosePartsDoNotFit) {
  const ImageDataset set = small_dataset(3, {1, 2, 2});
  const auto refuse = [&](auto change) {
    ImageDataset broken = set;
    change(broken);
    EXPECT_THROW(ImageSamples{broken}, InvalidArgument);
  };
  EXPECT_NO_THROW(ImageSamples{set});
  refuse([](ImageDataset& broken) { broken.images.pop_back(); });
  refuse([](ImageDataset& broken) { broken.labels.pop_back(); });
  refuse([](ImageDataset& broken) { broken.mean.push_back(0); });
  refuse([](ImageDataset& broken) { broken.standard_deviation = {0.0f}; });
  refuse([](ImageDataset& broken) { broken.height = 0; });
}

TEST(ImageSamples, RefuseAPaddingThatLeavesNoImage) {
  const ImageDataset set = small_dataset(1, {1, 3, 2});
  EXPECT_THROW(ImageSamples(set, {.crop_padding = -1}), InvalidArgument);
  EXPECT_THROW(ImageSamples(set, {.crop_padding = 3}), InvalidArgument);
  EXPECT_NO_THROW(ImageSamples(set, {.crop_padding = 2}));
}

TEST(SampleRandom, DiffersForEverySeedEpochAndIndex) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 20; ++seed)
    for (std::uint64_t epoch = 0; epoch < 20; ++epoch)
      for (std::uint64_t index = 0; index < 20; ++index)
        seen.insert(SampleRandom(seed, epoch, index).next());
  EXPECT_EQ(seen.size(), 8000u);
}

TEST(SampleRandom, StaysBelowTheEnd) {
  SampleRandom random(1, 2, 3);
  std::set<std::uint32_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(random.below(5));
  EXPECT_EQ(seen, (std::set<std::uint32_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace lockstep
