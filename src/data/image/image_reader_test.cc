#include "src/data/image/image_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/data/testing/image_regions.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using namespace std::string_view_literals;

constexpr DecodeOptions kTurned = {.orientation = ExifOrientation::kApply};

std::string refusal_of(std::string_view contents) {
  return error_text(
      [&] { decode_image(std::as_bytes(std::span(contents)), "a.jpg"); });
}

TEST(ImageReader, NamesTheFormatThatItRefuses) {
  EXPECT_THAT(refusal_of("GIF89a123"),
              AllOf(HasSubstr("cannot read a.jpg: it is a GIF file"),
                    HasSubstr("next: ")));
  EXPECT_THAT(refusal_of("RIFF1234WEBPVP8 "), HasSubstr("WebP"));
  EXPECT_THAT(refusal_of("BM123"), HasSubstr("BMP"));
  EXPECT_THAT(refusal_of("II*\0abcd"sv), HasSubstr("TIFF"));
  EXPECT_THAT(refusal_of("\0\0\0 ftypavif"sv), HasSubstr("AVIF"));
  EXPECT_THAT(refusal_of("\0\0\0 ftypheic"sv), HasSubstr("HEIF"));
  EXPECT_THAT(refusal_of(""), HasSubstr("found:    an empty file"));
  EXPECT_THAT(refusal_of("a text"), HasSubstr("found:    61 20 74 65 78 74"));
  EXPECT_THAT(refusal_of("\xff\xd8 no image"), HasSubstr("cannot read a.jpg"));
}

// The pixel of a stored image that each orientation shows at a place, from the
// table of EXIF: which sides row 0 and column 0 are.
std::size_t stored_pixel(const ImageSize& stored, int orientation,
                         std::int64_t row, std::int64_t column) {
  const std::int64_t last_row = stored.height - 1;
  const std::int64_t last_column = stored.width - 1;
  std::int64_t from_row = row;
  std::int64_t from_column = column;
  switch (orientation) {
    case 2:  // row 0 is the top, column 0 the right side
      from_column = last_column - column;
      break;
    case 3:  // bottom, right
      from_row = last_row - row;
      from_column = last_column - column;
      break;
    case 4:  // bottom, left
      from_row = last_row - row;
      break;
    case 5:  // left, top
      from_row = column;
      from_column = row;
      break;
    case 6:  // right, top
      from_row = last_row - column;
      from_column = row;
      break;
    case 7:  // right, bottom
      from_row = last_row - column;
      from_column = last_column - row;
      break;
    case 8:  // left, bottom
      from_row = column;
      from_column = last_column - row;
      break;
    default:
      break;
  }
  return static_cast<std::size_t>(from_row * stored.width + from_column);
}

class Orientations : public testing::TestWithParam<int> {
 protected:
  static std::vector<ImageFile> files() {
    return {
        encode_jpeg(test_image({21, 35}), {.orientation = GetParam()}),
        encode_png(test_image({21, 35}), {.orientation = GetParam()}),
        encode_png(test_image({21, 35}, 1), {.orientation = GetParam()}),
    };
  }
};

INSTANTIATE_TEST_SUITE_P(All, Orientations, testing::Range(1, 9));

TEST_P(Orientations, AreIgnoredByDefault) {
  for (const ImageFile& file : files())
    EXPECT_EQ(decode_image(file, "a").size, (ImageSize{21, 35}));
}

TEST_P(Orientations, TurnTheImage) {
  for (const ImageFile& file : files()) {
    EXPECT_EQ(image_size(file, "a"), (ImageSize{21, 35}));
    const Image stored = decode_image(file, "a");
    const Image shown = decode_image(file, "a", kTurned);
    const ImageSize turned =
        GetParam() < 5 ? ImageSize{21, 35} : ImageSize{35, 21};
    ASSERT_EQ(shown.size, turned);
    ASSERT_EQ(ImageReader().open(file, "a", kTurned), turned);
    std::size_t at = 0;
    for (std::int64_t row = 0; row < turned.height; ++row)
      for (std::int64_t column = 0; column < turned.width; ++column)
        for (std::size_t channel = 0; channel < 3; ++channel, ++at)
          ASSERT_EQ(shown.pixels[at],
                    stored.pixels[3 * stored_pixel(stored.size, GetParam(), row,
                                                   column) +
                                  channel])
              << row << ", " << column;
  }
}

TEST_P(Orientations, TurnTheRegionsToo) {
  for (const ImageFile& file : files()) check_regions(file, kTurned);
}

TEST_P(Orientations, PreventScaling) {
  ImageReader reader;
  Image image;
  const ImageFile file = files().front();
  reader.open(file, "a.jpg", kTurned);
  EXPECT_EQ(reader.scales(), GetParam() == 1);
  if (GetParam() != 1) {
    EXPECT_THAT(error_text([&] {
                  reader.read({.size = {5, 5}}, 2, image);
                }),
                HasSubstr("an orientation to apply"));
  }
  reader.open(file, "a.jpg");
  EXPECT_TRUE(reader.scales());
}

TEST(ImageReader, RefusesARegionOutsideTheImage) {
  const ImageFile file = encode_jpeg(test_image({20, 30}));
  constexpr std::int64_t kMost = INT64_MAX;
  ImageReader reader;
  Image image;
  reader.open(file, "a.jpg");
  for (const ImageRegion& region :
       {ImageRegion{-1, 0, {5, 5}}, ImageRegion{0, -1, {5, 5}},
        ImageRegion{0, 0, {0, 5}}, ImageRegion{0, 0, {5, 0}},
        ImageRegion{0, 0, {21, 5}}, ImageRegion{0, 0, {5, 31}},
        ImageRegion{16, 0, {5, 5}}, ImageRegion{0, 26, {5, 5}},
        ImageRegion{kMost, 0, {kMost, 5}}, ImageRegion{0, kMost, {5, kMost}}})
    EXPECT_THAT(error_text([&] { reader.read(region, image); }),
                AllOf(HasSubstr("the image has 20 x 30"), HasSubstr("next: ")));
  reader.read(image);
  EXPECT_EQ(image.size, (ImageSize{20, 30}));
}

TEST(ImageReader, RefusesOtherDenominators) {
  const ImageFile file = encode_jpeg(test_image({20, 30}));
  ImageReader reader;
  Image image;
  reader.open(file, "a.jpg");
  for (const int denominator : {-1, 0, 3, 16})
    EXPECT_THAT(error_text([&] {
                  reader.read({.size = {2, 2}}, denominator, image);
                }),
                HasSubstr("use 1, 2, 4 or 8"));
}

TEST(ImageReader, AllowsOneReadForEachOpen) {
  const ImageFile file = encode_jpeg(test_image({20, 30}));
  ImageReader reader;
  Image image;
  EXPECT_THROW(reader.read(image), InternalError);
  reader.open(file, "a.jpg");
  reader.read(image);
  EXPECT_THROW(reader.read(image), InternalError);
  EXPECT_THROW(reader.scales(), InternalError);
}

// Cuts the contents at each length, so that errors come from each step. A PNG
// file that lacks only its last 16 bytes, a checksum and the chunk that ends
// it, has all pixels, and is read.
void read_all_starts(ImageReader& reader, const ImageFile& file) {
  Image image;
  for (std::size_t size = 0; size + 16 < file.size(); size += 7) {
    const std::span<const std::byte> cut(file.data(), size);
    EXPECT_THROW((reader.open(cut, "cut"), reader.read(image)),
                 InvalidArgument);
  }
}

TEST(ImageReader, ReadsOtherFilesAfterAnError) {
  const std::vector<ImageFile> files = {
      encode_jpeg(test_image({40, 30})),
      encode_jpeg(test_image({30, 40}, 1)),
      encode_jpeg(test_image({30, 20}), {.coding = JpegCoding::kProgressive}),
      encode_png(test_image({20, 30})),
      encode_png(test_image({20, 10}, 1), {.interlaced = true}),
  };
  ImageReader reader;
  for (const ImageFile& broken : files) {
    read_all_starts(reader, broken);
    for (const ImageFile& file : files) {
      Image image;
      reader.open(file, "whole");
      reader.read(image);
      EXPECT_EQ(image.pixels, decode_image(file, "whole").pixels);
    }
  }
}

TEST(ImageReader, ReadsNothingAfterAnOpenThatFails) {
  const ImageFile file = encode_jpeg(test_image({20, 30}));
  ImageReader reader;
  Image image;
  reader.open(file, "a.jpg");
  EXPECT_THROW(reader.open({}, "empty"), InvalidArgument);
  EXPECT_THROW(reader.read(image), InternalError);
}

TEST(ImageReader, UsesTheMemoryOfAnImageAgain) {
  const ImageFile large = encode_jpeg(test_image({40, 60}));
  const ImageFile small = encode_png(test_image({20, 30}));
  ImageReader reader;
  Image image;
  reader.open(large, "a.jpg");
  reader.read(image);
  const std::uint8_t* const pixels = image.pixels.data();
  for (const ImageFile& file : {small, large}) {
    reader.open(file, "a");
    reader.read(image);
    EXPECT_EQ(image.pixels.data(), pixels);
  }
}

}  // namespace
}  // namespace lockstep
