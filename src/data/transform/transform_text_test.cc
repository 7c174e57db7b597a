#include "src/data/transform/transform_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
T only(std::string_view text) {
  const Compose compose(text);
  EXPECT_EQ(compose.transforms().size(), 1u);
  return std::get<T>(compose.transforms().front());
}

std::string refusal(std::string_view text) {
  return error_text<InvalidArgument>([&] { Compose{text}; });
}

TEST(TransformText, TakesArgumentsByPlaceAndByName) {
  const auto jitter =
      only<ColorJitter>("color_jitter(0.4, hue=0.1, contrast=(0.5,0.9))");
  EXPECT_EQ(jitter.brightness, NumberOrRange(0.4));
  EXPECT_EQ(jitter.contrast, NumberOrRange(Range{0.5, 0.9}));
  EXPECT_EQ(jitter.saturation, NumberOrRange(0.0));
  EXPECT_EQ(jitter.hue, NumberOrRange(0.1));
}

TEST(TransformText, TakesOneSideOrHeightAndWidth) {
  EXPECT_EQ(only<Resize>("resize(256)").size, Sides(256));
  EXPECT_EQ(only<Resize>("resize((224, 320))").size,
            Sides(ImageSize{224, 320}));
  EXPECT_EQ(only<CenterCrop>("center_crop([3,4])").size,
            Sides(ImageSize{3, 4}));
}

TEST(TransformText, TakesANumberInParenthesesAsPythonDoes) {
  EXPECT_THAT(only<RandomCrop>("random_crop(32, padding=(4))").padding,
              ElementsAre(4, 4, 4, 4));
  EXPECT_EQ(only<RandomHorizontalFlip>("hflip((0.25))").p, 0.25);
}

TEST(TransformText, TakesAListOfOneWhereTorchvisionDoes) {
  for (const char* text : {"resize([32])", "resize((32,))"})
    EXPECT_EQ(only<Resize>(text).size, Sides(32));
  EXPECT_EQ(only<CenterCrop>("center_crop([32])").size, Sides(32));
  EXPECT_EQ(only<GaussianBlur>("gaussian_blur([3])").kernel_size, Sides(3));
  EXPECT_THAT(only<RandomCrop>("random_crop(32, padding=[4])").padding,
              ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(only<RandomCrop>("random_crop(32, fill=[7])").fill,
              ElementsAre(7, 7, 7));
  EXPECT_NO_THROW(Compose("to_tensor | random_erasing(value=[0.5])"));
  for (const char* text :
       {"color_jitter([0.4])", "random_rotation([9])", "hflip([0.5])"})
    EXPECT_NE(refusal(text), "no error") << text;
}

// torchvision has (height, width) everywhere but in GaussianBlur.
TEST(TransformText, TakesAKernelsWidthBeforeItsHeight) {
  const Compose compose("gaussian_blur((5, 1))");
  EXPECT_EQ(std::get<GaussianBlur>(compose.transforms().front()).kernel_size,
            Sides(ImageSize{.height = 1, .width = 5}));
  EXPECT_EQ(compose.text(), "gaussian_blur(kernel_size=(5, 1))");
  EXPECT_THAT(refusal("gaussian_blur(2.5)"),
              HasSubstr("kernel_size: a whole number, or (width, height)"));
}

TEST(TransformText, TakesPaddingAsTorchvisionDoes) {
  EXPECT_THAT(only<RandomCrop>("random_crop(32, padding=4)").padding,
              ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(only<RandomCrop>("random_crop(32, (1, 2))").padding,
              ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(only<RandomCrop>("random_crop(32, (1, 2, 3, 4))").padding,
              ElementsAre(1, 2, 3, 4));
}

TEST(TransformText, TakesShearOfOneSideAndOfBoth) {
  EXPECT_EQ(only<RandomAffine>("random_affine(0, shear=5)").shear.x,
            NumberOrRange(5.0));
  const Shear both =
      only<RandomAffine>("random_affine(0, shear=(1, 2, 3, 4))").shear;
  EXPECT_EQ(both.x, NumberOrRange(Range{1, 2}));
  EXPECT_EQ(both.y, NumberOrRange(Range{3, 4}));
}

TEST(TransformText, KnowsImagenetsMeanAndDeviation) {
  EXPECT_EQ(only<Normalize>("normalize(imagenet)").mean,
            imagenet_normalize().mean);
  EXPECT_THAT(only<Normalize>("normalize((0.5,), 0.25)").mean,
              ElementsAre(0.5f));
}

TEST(TransformText, IsPrintedWithoutWhatIsUsual) {
  const Compose compose(
      "resize( 256 ,bicubic)|hflip| random_rotation(10,expand=True) | "
      "color_jitter(hue=(0,0.1)) | random_erasing(value=random)");
  EXPECT_EQ(compose.text(),
            "resize(size=256, interpolation=bicubic) | random_horizontal_flip "
            "| random_rotation(degrees=10, expand=true) | "
            "color_jitter(hue=(0, 0.1)) | random_erasing(value=random)");
}

TEST(TransformText, IsReadAsItWasPrinted) {
  for (const std::string_view text :
       {"random_affine((-1, 2), (0.1, 0.2), (0.5, 2), (1, 2, 3, 4), bicubic, "
        "(1, 2, 3), (4.5, 6))",
        "random_crop((5, 6), (1, 2, 3, 4), true, 9, reflect)",
        "gaussian_blur((3, 5), 0.1) | to_tensor | normalize((1, 2, 3), "
        "(0.1, 0.2, 0.3)) | random_erasing(0.1, (0.2, 0.3), (1, 2), (1, 2, 3))",
        "random_resized_crop(9, (0.1, 1), (1, 1), nearest) | vflip(0.125)"}) {
    const std::string printed = Compose(text).text();
    EXPECT_EQ(Compose(printed).text(), printed);
  }
}

TEST(TransformText, ThatIsWrongIsRefusedWithThePlace) {
  EXPECT_THAT(refusal("resize(256"),
              AllOf(HasSubstr("expected \",\" or \")\" at character 11"),
                    HasSubstr("found the end")));
  EXPECT_THAT(refusal("hflip | | vflip"),
              AllOf(HasSubstr("the name of a transform at character 9"),
                    HasSubstr("found \"| vflip\"")));
  EXPECT_THAT(refusal(""), HasSubstr("the name of a transform"));
  EXPECT_THAT(refusal("hflip)"), HasSubstr("expected \"|\" or the end"));
  EXPECT_THAT(refusal("resize(1e999)"), HasSubstr("expected a number"));
  EXPECT_THAT(refusal("resize((1, (2)))"), HasSubstr("expected a number"));
}

TEST(TransformText, OfAnUnknownTransformListsTheKnownOnes) {
  EXPECT_THAT(refusal("hflip | random_crap(3)"),
              AllOf(HasSubstr("one of resize, center_crop, random_crop"),
                    HasSubstr("hflip, vflip at character 9")));
}

TEST(TransformText, OfAnUnknownArgumentListsTheKnownOnes) {
  EXPECT_THAT(refusal("hflip(q=0.5)"),
              HasSubstr("each argument once, of hflip(p)"));
  EXPECT_THAT(refusal("hflip(0.5, p=0.5)"), HasSubstr("each argument once"));
  EXPECT_THAT(refusal("center_crop(1, 2)"), HasSubstr("center_crop(size)"));
}

TEST(TransformText, OfAnotherKindOfValueSaysWhichIsExpected) {
  EXPECT_THAT(refusal("resize(2.5)"),
              HasSubstr("resize's size: a whole number, or (height, width)"));
  EXPECT_THAT(refusal("resize(9, cubic)"),
              AllOf(HasSubstr("nearest, bilinear or bicubic at character 11"),
                    HasSubstr("found \"cubic)\"")));
  EXPECT_THAT(refusal("random_rotation(1, fill=256)"), HasSubstr("0 to 255"));
  EXPECT_THAT(refusal("random_affine(1, center=3)"), HasSubstr("(x, y)"));
}

}  // namespace
}  // namespace lockstep
