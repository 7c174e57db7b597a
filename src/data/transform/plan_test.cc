#include "src/data/transform/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>

#include "src/data/image/image_reader.h"
#include "src/data/testing/test_images.h"
#include "src/data/transform/pipeline.h"

namespace lockstep::transforms {
namespace {

constexpr auto kInterpolations = {
    Interpolation::kNearest, Interpolation::kBilinear, Interpolation::kBicubic};

// The operations one by one on the whole image.
Image slowly(const ImageFile& file, const std::vector<Operation>& operations) {
  Image image = decode_image(file, "whole");
  Pipeline().apply_to_pixels(operations, image);
  return image;
}

struct Planned {
  DecodePlan plan{};
  Image image{};
};

Planned planned(const ImageFile& file, DecodeScaling scaling,
                std::vector<Operation> operations) {
  Planned result;
  ImageReader reader;
  const ImageSize size = reader.open(file, "planned");
  result.plan = plan_decoding(size, scaling, operations);
  reader.read(result.plan.region, result.plan.denominator, result.image);
  Pipeline().apply_to_pixels(operations, result.image);
  return result;
}

class Random {
 public:
  explicit Random(unsigned seed) : numbers_(seed) {}
  std::int64_t in(std::int64_t first, std::int64_t last) {
    return std::uniform_int_distribution(first, last)(numbers_);
  }
  ImageRegion part_of(const ImageSize& size) {
    const ImageSize part{in(1, size.height), in(1, size.width)};
    return {in(0, size.height - part.height), in(0, size.width - part.width),
            part};
  }

 private:
  std::mt19937 numbers_;
};

std::string described(const std::vector<Operation>& operations) {
  std::string text;
  for (const Operation& operation : operations)
    if (const auto* crop = std::get_if<Crop>(&operation))
      text += " crop " + std::to_string(crop->region.top) + " " +
              std::to_string(crop->region.left) + " " +
              std::to_string(crop->region.size.height) + " x " +
              std::to_string(crop->region.size.width);
    else if (const auto* resize = std::get_if<ResizeTo>(&operation))
      text += " resize " + std::to_string(resize->size.height) + " x " +
              std::to_string(resize->size.width);
  return text;
}

TEST(DecodePlan, ChangesNoBitOfCropsAndResizes) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const ImageSize whole{61, 83};
  const ImageFile file = encode_jpeg(test_image(whole));
  for (int trial = 0; trial < 300; ++trial)
    for (const Interpolation interpolation : kInterpolations) {
      std::vector<Operation> operations;
      ImageSize size = whole;
      const auto crop = [&] {
        operations.emplace_back(Crop{random.part_of(size)});
        size = std::get<Crop>(operations.back()).region.size;
      };
      if (random.in(0, 1) == 1) crop();
      // Now and then a side keeps its length.
      const ImageSize resized{
          random.in(0, 3) == 0 ? size.height : random.in(1, 90),
          random.in(0, 3) == 0 ? size.width : random.in(1, 90)};
      operations.emplace_back(ResizeTo{resized, interpolation});
      size = resized;
      if (random.in(0, 2) > 0) crop();
      operations.emplace_back(Mirror{});
      operations.emplace_back(ToFloat{});
      const Image expected = slowly(file, operations);
      const Image found =
          planned(file, DecodeScaling::kExact, operations).image;
      ASSERT_EQ(found.size, expected.size) << described(operations);
      ASSERT_EQ(found.pixels, expected.pixels) << described(operations);
    }
}

TEST(DecodePlan, DecodesOnlyWhatACropAfterAResizeNeeds) {
  const ImageFile file = encode_jpeg(test_image({200, 400}));
  const auto plan =
      planned(file, DecodeScaling::kExact,
              {ResizeTo{{100, 200}}, Crop{{10, 50, {80, 100}}}, ToFloat{}})
          .plan;
  EXPECT_EQ(plan.denominator, 1);
  // One pixel beside 20 … 180 and 100 … 300.
  EXPECT_EQ(plan.region.top, 19);
  EXPECT_EQ(plan.region.left, 99);
  EXPECT_EQ(plan.region.size, (ImageSize{162, 202}));
}

TEST(DecodePlan, ScalesAsFarAsTheResultStaysHalfAsLarge) {
  const ImageFile file = encode_jpeg(test_image({400, 640}));
  const auto denominator = [&](const ImageSize& size,
                               Interpolation interpolation,
                               DecodeScaling scaling) {
    return planned(file, scaling, {ResizeTo{size, interpolation}, ToFloat{}})
        .plan.denominator;
  };
  constexpr auto kScaled = DecodeScaling::kScaled;
  constexpr auto kBilinear = Interpolation::kBilinear;
  EXPECT_EQ(denominator({101, 40}, kBilinear, kScaled), 1);
  EXPECT_EQ(denominator({100, 160}, kBilinear, kScaled), 2);
  EXPECT_EQ(denominator({50, 80}, kBilinear, kScaled), 4);
  EXPECT_EQ(denominator({25, 40}, kBilinear, kScaled), 8);
  EXPECT_EQ(denominator({1, 1}, Interpolation::kBicubic, kScaled), 8);
  EXPECT_EQ(denominator({1, 1}, Interpolation::kNearest, kScaled), 1);
  EXPECT_EQ(denominator({1, 1}, kBilinear, DecodeScaling::kExact), 1);
}

// The root of the mean squared difference, in steps of 8 bits.
double difference(const Image& one, const Image& other) {
  EXPECT_EQ(one.size, other.size);
  EXPECT_EQ(one.pixels.size(), other.pixels.size());
  double sum = 0;
  for (std::size_t i = 0; i < one.pixels.size(); ++i)
    sum += std::pow(one.pixels[i] - other.pixels[i], 2);
  return std::sqrt(sum / static_cast<double>(one.pixels.size()));
}

// A shift by half a scaled pixel doubles this difference.
TEST(DecodePlan, ChangesScaledPixelsLittleWhereverTheCropLies) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const ImageSize whole{331, 437};
  const ImageFile file = encode_jpeg(test_image(whole), {.quality = 95});
  constexpr int kTrials = 200;
  double sum = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const ImageSize result{random.in(5, 20), random.in(5, 20)};
    const ImageSize part{random.in(4 * result.height, whole.height),
                         random.in(4 * result.width, whole.width)};
    const ImageRegion region{random.in(0, whole.height - part.height),
                             random.in(0, whole.width - part.width), part};
    std::vector<Operation> operations{Crop{region}, ResizeTo{result},
                                      ToFloat{}};
    if (trial % 2 == 0)
      operations.insert(operations.end() - 1, Crop{random.part_of(result)});
    const Planned scaled = planned(file, DecodeScaling::kScaled, operations);
    ASSERT_GT(scaled.plan.denominator, 1) << described(operations);
    sum += difference(scaled.image, slowly(file, operations));
  }
  EXPECT_LT(sum / kTrials, 2.2);
}

std::int64_t greatest_difference(const Image& one, const Image& other) {
  EXPECT_EQ(one.pixels.size(), other.pixels.size());
  std::int64_t most = 0;
  for (std::size_t i = 0; i < one.pixels.size(); ++i)
    most =
        std::max<std::int64_t>(most, std::abs(one.pixels[i] - other.pixels[i]));
  return most;
}

// Lines of two pixels through the centre of a white image.
Image drawn_lines(const std::array<std::uint8_t, 3>& color) {
  constexpr std::int64_t kSide = 1200;
  Image image{.size = {kSide, kSide}};
  image.pixels.resize(static_cast<std::size_t>(3 * kSide * kSide), 255);
  for (std::int64_t row = 0; row < kSide; ++row)
    for (std::int64_t slope = -20; slope <= 20; ++slope) {
      const std::int64_t column =
          kSide / 2 + (row - kSide / 2) * slope * 40 / (kSide / 2 + 200);
      for (const std::int64_t at : {column, column + 1})
        if (at >= 0 && at < kSide)
          std::copy(color.begin(), color.end(),
                    image.pixels.begin() + 3 * (row * kSide + at));
    }
  return image;
}

// The guide of transforms states these.
TEST(DecodePlan, ChangesScaledPixelsOfColoredLinesMoreThanThoseOfGrey) {
  const auto most = [](const std::array<std::uint8_t, 3>& color) {
    const ImageFile file = encode_jpeg(drawn_lines(color), {.quality = 75});
    const std::vector<Operation> operations{ResizeTo{{64, 64}}, ToFloat{}};
    const Planned scaled = planned(file, DecodeScaling::kScaled, operations);
    EXPECT_GT(scaled.plan.denominator, 1);
    return greatest_difference(scaled.image, slowly(file, operations));
  };
  // 39 and 12 with libjpeg-turbo 2.1.
  EXPECT_THAT(most({255, 0, 0}),
              testing::AllOf(testing::Gt(20), testing::Le(48)));
  EXPECT_LE(most({0, 0, 0}), 16);
}

// The last scaled pixel of a side covers a part of the image only where the
// side is no multiple of the denominator.
TEST(DecodePlan, CountsScaledPixelsAtTheSidesByWhatTheyCover) {
  for (const std::int64_t side : {32, 33, 41, 65}) {
    Image image{.size = {side, side}, .channels = 1};
    image.pixels.resize(static_cast<std::size_t>(side * side), 0);
    for (std::int64_t i = 0; i < side; ++i)
      for (const std::int64_t at : {(side - 1) * side + i, i * side + side - 1})
        image.pixels[static_cast<std::size_t>(at)] = 255;
    const ImageFile file = encode_jpeg(image);
    const std::vector<Operation> operations{ResizeTo{{1, 1}}, ToFloat{}};
    EXPECT_LT(
        difference(planned(file, DecodeScaling::kScaled, operations).image,
                   slowly(file, operations)),
        8)
        << side;
  }
}

}  // namespace
}  // namespace lockstep::transforms
