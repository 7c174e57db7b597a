#include "apps/evaluate/image_side.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const ModelImages kModel{.file = "m.safetensors", .images = "3 x 64 x 64"};
const ModelImages kUnknown{.file = "m.safetensors", .images = ""};

TEST(ImageSide, IsThatOfTheModelsFile) {
  EXPECT_EQ(image_side(std::nullopt, kModel), 64);
  EXPECT_EQ(image_side(64, kModel), 64);
}

TEST(ImageSide, IsTheFlagsWhereTheFileDoesNotSay) {
  EXPECT_EQ(image_side(32, kUnknown), 32);
  EXPECT_EQ(image_side(32, {.file = "m", .images = "large"}), 32);
  EXPECT_THAT(error_text([] { image_side(std::nullopt, kUnknown); }),
              AllOf(HasSubstr("\"m.safetensors\" does not say how large"),
                    HasSubstr("next:    give the side with --image-size")));
}

TEST(ImageSide, ThatTheModelDoesNotTakeIsRefused) {
  EXPECT_THAT(error_text([] { image_side(32, kModel); }),
              AllOf(HasSubstr("--image-size is 32, but the model in "
                              "\"m.safetensors\" takes images of 3 x 64 x 64"),
                    HasSubstr("next:    leave out --image-size")));
}

TEST(ImageSide, IsRefusedForImagesOfOneSize) {
  EXPECT_NO_THROW(check_no_image_side(std::nullopt, kModel, "MNIST"));
  EXPECT_THAT(error_text([] { check_no_image_side(32, kModel, "MNIST"); }),
              AllOf(HasSubstr("--image-size is 32, but"),
                    HasSubstr("those of MNIST have one size, as the model in "
                              "\"m.safetensors\" takes them: 3 x 64 x 64"),
                    HasSubstr("next:    leave out --image-size")));
  EXPECT_THAT(error_text([] { check_no_image_side(32, kUnknown, "MNIST"); }),
              AllOf(HasSubstr("of MNIST have one size\n"),
                    Not(HasSubstr("m.safetensors"))));
}

}  // namespace
}  // namespace lockstep
