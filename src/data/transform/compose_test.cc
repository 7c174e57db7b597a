// tests/golden/transform_golden.py compares the pixels with PIL's; here is what
// is ours.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/data/transforms.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Image gray(const ImageSize& size, std::vector<std::uint8_t> pixels) {
  return {.size = size, .channels = 1, .pixels = std::move(pixels)};
}

// Pixels 0, 1, 2, …
Image counting(const ImageSize& size, std::int64_t channels = 3) {
  Image image{.size = size, .channels = channels};
  image.pixels.resize(
      static_cast<std::size_t>(size.height * size.width * channels));
  std::iota(image.pixels.begin(), image.pixels.end(), std::uint8_t{0});
  return image;
}

std::vector<std::uint8_t> pixels_after(std::string_view text,
                                       const Image& image) {
  return Compose(text).apply_to_pixels(image, {}).pixels;
}

std::vector<float> numbers_after(std::string_view text, const Image& image) {
  std::vector<float> numbers;
  Compose(text).apply(image, {}, numbers);
  return numbers;
}

std::string refusal(std::vector<Transform> transforms) {
  return error_text<InvalidArgument>([&] { Compose{std::move(transforms)}; });
}

std::string refusal_of(std::string_view text, const Image& image) {
  return error_text<InvalidArgument>([&] { pixels_after(text, image); });
}

constexpr std::string_view kEverything =
    "random_resized_crop(9) | hflip | vflip | random_rotation(45) | "
    "random_affine(45, (0.1, 0.1)) | color_jitter(0.4, 0.4, 0.4, 0.1) | "
    "random_grayscale(0.5) | gaussian_blur(3) | to_tensor | "
    "normalize(imagenet) | random_erasing(value=random)";

TEST(Compose, GivesTheSameForTheSameSeedEpochAndIndexOnly) {
  const Compose compose(kEverything);
  const Image image = counting({20, 30});
  const auto numbers = [&](const SampleKey& key) {
    std::vector<float> found;
    EXPECT_EQ(compose.apply(image, key, found), (ImageSize{9, 9}));
    return found;
  };
  const auto first = numbers({.seed = 1, .epoch = 2, .index = 3});
  EXPECT_EQ(numbers({.seed = 1, .epoch = 2, .index = 3}), first);
  EXPECT_NE(numbers({.seed = 2, .epoch = 2, .index = 3}), first);
  EXPECT_NE(numbers({.seed = 1, .epoch = 3, .index = 3}), first);
  EXPECT_NE(numbers({.seed = 1, .epoch = 2, .index = 4}), first);
}

TEST(Compose, InCodeIsComposeOfTheText) {
  const Compose code({RandomCrop{.size = 4, .padding = {1, 1, 1, 1}},
                      RandomHorizontalFlip{}, imagenet_normalize()});
  EXPECT_EQ(code.text(), Compose("random_crop(4, 1) | hflip | "
                                 "normalize(imagenet)")
                             .text());
}

TEST(Compose, GivesChannelsOneAfterTheOther) {
  EXPECT_THAT(numbers_after("to_tensor", counting({1, 2})),
              ElementsAre(0.0f, 3 / 255.0f, 1 / 255.0f, 4 / 255.0f, 2 / 255.0f,
                          5 / 255.0f));
}

TEST(Compose, ImpliesToTensorBeforeNumbersAndAtTheEnd) {
  const Image image = gray({1, 2}, {0, 255});
  EXPECT_THAT(numbers_after("hflip(0)", image), ElementsAre(0.0f, 1.0f));
  EXPECT_THAT(numbers_after("normalize(0.5, 0.25)", image),
              ElementsAre(-2.0f, 2.0f));
}

TEST(Compose, PadsInEachMode) {
  const Image image = gray({1, 3}, {1, 2, 3});
  const auto padded = [&](std::string_view mode) {
    return pixels_after("random_crop((1, 7), (2, 0), fill=9, padding_mode=" +
                            std::string(mode) + ")",
                        image);
  };
  EXPECT_THAT(padded("constant"), ElementsAre(9, 9, 1, 2, 3, 9, 9));
  EXPECT_THAT(padded("edge"), ElementsAre(1, 1, 1, 2, 3, 3, 3));
  EXPECT_THAT(padded("reflect"), ElementsAre(3, 2, 1, 2, 3, 2, 1));
  EXPECT_THAT(padded("symmetric"), ElementsAre(2, 1, 1, 2, 3, 3, 2));
}

TEST(Compose, LeavesSaturationAndHueOfGreyImagesAlone) {
  const Image image = counting({2, 2}, 1);
  EXPECT_EQ(
      pixels_after("color_jitter(saturation=(2, 2), hue=(0.2, 0.2))", image),
      image.pixels);
}

TEST(Compose, KnowsTheSizeOfItsOutputs) {
  EXPECT_EQ(Compose("hflip").output_size(), std::nullopt);
  EXPECT_EQ(Compose("resize(9)").output_size(), std::nullopt);
  EXPECT_EQ(Compose("resize((9, 8)) | hflip").output_size(), (ImageSize{9, 8}));
  EXPECT_EQ(Compose("resize(9) | center_crop(8)").output_size(),
            (ImageSize{8, 8}));
  EXPECT_EQ(Compose("center_crop((8, 4)) | resize(2)").output_size(),
            (ImageSize{4, 2}));
  EXPECT_EQ(
      Compose("center_crop(8) | random_rotation(9, expand=true)").output_size(),
      std::nullopt);
}

TEST(Compose, RefusesArgumentsOutOfRange) {
  EXPECT_THAT(refusal({Resize{}}), HasSubstr("resize: size is 0"));
  EXPECT_THAT(refusal({RandomRotation{}}), HasSubstr("degrees is missing"));
  EXPECT_THAT(refusal({RandomHorizontalFlip{.p = 1.5}}),
              AllOf(HasSubstr("random_horizontal_flip: p is 1.5"),
                    HasSubstr("0 to 1")));
  EXPECT_THAT(refusal({ColorJitter{.hue = 0.6}}), HasSubstr("hue is 0.6"));
  EXPECT_THAT(refusal({ColorJitter{.brightness = Range{-1, 1}}}),
              HasSubstr("brightness is (-1, 1)"));
  EXPECT_THAT(refusal({RandomResizedCrop{.size = 9, .scale = {0.9, 0.1}}}),
              HasSubstr("scale is (0.9, 0.1)"));
  EXPECT_THAT(refusal({GaussianBlur{.kernel_size = 4}}), HasSubstr("odd"));
  EXPECT_THAT(refusal({Normalize{.mean = {0}, .standard_deviation = {0}}}),
              HasSubstr("std is 0"));
  EXPECT_THAT(refusal({Normalize{.mean = {0, 1}, .standard_deviation = {1}}}),
              HasSubstr("mean is a list of 2"));
  EXPECT_THAT(refusal({RandomAffine{.degrees = 1.0, .scale = {0, 1}}}),
              HasSubstr("scale is (0, 1); expected a lower and an upper"));
  EXPECT_THAT(refusal({GaussianBlur{.kernel_size = 3, .sigma = {1e-46, 1}}}),
              HasSubstr("sigma is 0; expected more than 0"));
  EXPECT_THAT(refusal({Resize{.size = 9, .max_size = 9}}),
              HasSubstr("more than the size"));
}

TEST(Compose, RefusesAnOrderThatDoesNotExist) {
  EXPECT_THAT(refusal({ToTensor{}, RandomHorizontalFlip{}}),
              HasSubstr("move random_horizontal_flip before to_tensor"));
  EXPECT_THAT(refusal({imagenet_normalize(), ToTensor{}}),
              HasSubstr("cannot use to_tensor after normalize"));
}

TEST(Compose, RefusesImagesThatAreTooSmall) {
  const Image image = counting({3, 9});
  EXPECT_THAT(refusal_of("random_crop(4)", image),
              AllOf(HasSubstr("cannot crop 4 x 4 pixels out of an image of 3 x "
                              "9"),
                    HasSubstr("pad_if_needed")));
  EXPECT_THAT(
      refusal_of("gaussian_blur(7)", image),
      AllOf(HasSubstr("cannot blur"), HasSubstr("next:    give a smaller")));
  EXPECT_THAT(
      refusal_of("random_crop(9, padding=3, padding_mode=reflect)", image),
      HasSubstr("the padding (left 3, top 3, right 3, bottom 3) is larger"));
  EXPECT_THAT(refusal_of("resize(3, max_size=4) | hflip", counting({1, 200})),
              AllOf(HasSubstr("no pixel is left"),
                    HasSubstr("next:    give a larger max_size")));
}

TEST(Compose, RefusesACropOfWhichNoPixelIsLeft) {
  for (const char* ratio : {"(1000, 2000)", "(0.000001, 0.00001)"})
    EXPECT_THAT(
        refusal_of(fmt::format("random_resized_crop(8, ratio={})", ratio),
                   counting({100, 100})),
        AllOf(HasSubstr("cannot crop an image of 100 x 100"),
              HasSubstr("no pixel is left"), HasSubstr("next:")));
}

TEST(Compose, RefusesToMakeAHugeImageOnTheWay) {
  for (const char* text :
       {"resize(224) | center_crop(224)",
        "random_crop(9, padding=20000, pad_if_needed=true)",
        "random_rotation((33, 33), expand=true) | center_crop(9)"})
    EXPECT_THAT(refusal_of(text, counting({1, 40'000})),
                AllOf(HasSubstr("pixels on the way: at most"),
                      HasSubstr("next:    crop the image first")))
        << text;
}

TEST(Compose, RefusesThreeMeansForAGreyImage) {
  EXPECT_THAT(error_text<InvalidArgument>([] {
                numbers_after("normalize(imagenet)", counting({2, 2}, 1));
              }),
              HasSubstr("an image of 1 channel(s) by"));
}

TEST(Compose, RefusesAnImageWhosePixelsAreNotItsSize) {
  Image image = counting({2, 2});
  image.pixels.pop_back();
  EXPECT_THAT(refusal_of("hflip", image), HasSubstr("11 bytes"));
  EXPECT_THAT(refusal_of("hflip", Image{}), HasSubstr("image of 0 x 0"));
}

TEST(RandomErasing, WritesItsValueOrNoise) {
  const Image image = gray({10, 10}, std::vector<std::uint8_t>(100, 255));
  const auto erased = numbers_after("random_erasing(1, value=7)", image);
  EXPECT_GT(std::ranges::count(erased, 7.0f), 0);
  EXPECT_THAT(erased, Each(testing::AnyOf(1.0f, 7.0f)));
  const auto noisy = numbers_after("random_erasing(1, value=random)", image);
  EXPECT_EQ(std::ranges::count(noisy, 1.0f), std::ranges::count(erased, 1.0f));
}

}  // namespace
}  // namespace lockstep
