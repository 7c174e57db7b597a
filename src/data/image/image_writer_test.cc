#include "src/data/image/image_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/base/testing/error_text.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

constexpr ImageSize kWrittenSizes[] = {
    {1, 1}, {1, 17}, {40, 1}, {37, 53}, {64, 64}};

Image read_back(const std::vector<std::byte>& file, const Image& original) {
  return decode_image(
      file, "written",
      {.color = original.channels == 1 ? ImageColor::kGray : ImageColor::kRgb});
}

double difference_of(const Image& one, const Image& other) {
  double sum = 0;
  for (std::size_t i = 0; i < one.pixels.size(); ++i)
    sum += std::abs(one.pixels[i] - other.pixels[i]);
  return sum / static_cast<double>(one.pixels.size());
}

TEST(ImageWriter, WritesPngFilesOfEqualPixels) {
  for (const ImageSize& size : kWrittenSizes)
    for (const std::int64_t channels : {1, 3}) {
      const Image image = test_image(size, channels);
      const Image read = read_back(write_png(image), image);
      EXPECT_EQ(read.size, size);
      EXPECT_EQ(read.pixels, image.pixels);
    }
}

TEST(ImageWriter, WritesJpegFilesOfNearlyEqualPixels) {
  for (const ImageSize& size : kWrittenSizes)
    for (const std::int64_t channels : {1, 3}) {
      Image image{.size = size, .channels = channels};
      for (std::int64_t i = 0; i < size.height * size.width * channels; ++i)
        image.pixels.push_back(
            static_cast<std::uint8_t>(100 + i / channels % size.width));
      const Image read = read_back(write_jpeg(image, 95), image);
      EXPECT_EQ(read.size, size);
      EXPECT_LT(difference_of(read, image), 3);
    }
}

// The encoder of the tests calls libjpeg on its own.
TEST(ImageWriter, WritesTheUsualFormOfJpeg) {
  const Image image = test_image({37, 53});
  EXPECT_EQ(write_jpeg(image), encode_jpeg(image));
  // Longer than what the writer buffers.
  const Image large = test_image({300, 301});
  const std::vector<std::byte> file = write_jpeg(large);
  EXPECT_GT(file.size(), 40'000u);
  EXPECT_EQ(file, encode_jpeg(large));
  EXPECT_LT(write_jpeg(image, 40).size(), write_jpeg(image).size());
}

TEST(ImageWriter, RefusesWhatIsNoImage) {
  const auto refusal = [](const Image& image) {
    const std::string text = error_text([&] { write_png(image); });
    EXPECT_EQ(error_text([&] { write_jpeg(image); }).substr(0, 20),
              text.substr(0, 20));
    return text;
  };
  EXPECT_THAT(refusal({.size = {0, 4}}), HasSubstr("it has no pixels"));
  EXPECT_THAT(refusal({.size = {1, 2'000'000}}), HasSubstr("too long"));
  EXPECT_THAT(refusal({.size = {1, 1}, .channels = 4, .pixels = {1, 2, 3, 4}}),
              HasSubstr("neither grey nor RGB"));
  EXPECT_THAT(refusal({.size = {1, 2}, .pixels = {1, 2, 3}}),
              HasSubstr("height x width x channels"));
  EXPECT_THAT(error_text([] {
                write_jpeg(test_image({2, 2}), 0);
              }),
              HasSubstr("from 1 to 100"));
}

}  // namespace
}  // namespace lockstep
