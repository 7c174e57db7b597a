#include "src/data/image/exif.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "src/base/testing/test_seed.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

using Block = std::vector<std::uint8_t>;

int orientation_of(const Block& block) {
  return exif_orientation(std::as_bytes(std::span(block)));
}

TEST(Exif, FindsEachOrientationInBothByteOrders) {
  for (std::uint8_t orientation = 1; orientation <= 8; ++orientation) {
    EXPECT_EQ(orientation_of(exif_block(orientation)), orientation);
    const Block little = {'I',         'I',  42,   0, 8, 0, 0, 0, 1,
                          0,           0x12, 0x01, 3, 0, 1, 0, 0, 0,
                          orientation, 0,    0,    0, 0, 0, 0, 0};
    EXPECT_EQ(orientation_of(little), orientation);
  }
}

TEST(Exif, FindsAnEntryAmongOthersAndAValueOfFourBytes) {
  const Block block = {'M', 'M',  0, 42, 0, 0, 0, 10, 9,   9,   0,   2,
                       1,   0x0f, 0, 2,  0, 0, 0, 4,  'a', 'b', 'c', 0,
                       1,   0x12, 0, 4,  0, 0, 0, 1,  0,   0,   0,   6};
  EXPECT_EQ(orientation_of(block), 6);
}

TEST(Exif, TakesAMalformedBlockForNone) {
  EXPECT_EQ(orientation_of({}), 1);
  for (const int orientation : {0, 9, 255})
    EXPECT_EQ(orientation_of(exif_block(orientation)), 1);
  Block block = exif_block(6);
  block[13] = 2;  // the type is a text
  EXPECT_EQ(orientation_of(block), 1);
  block = exif_block(6);
  block[4] = 0xff;  // the directory is far away
  EXPECT_EQ(orientation_of(block), 1);
  block = exif_block(6);
  block[3] = 43;  // not the number of TIFF
  EXPECT_EQ(orientation_of(block), 1);
  block = exif_block(6);
  block.resize(21);  // the entry is incomplete
  EXPECT_EQ(orientation_of(block), 1);
}

TEST(Exif, ReadsTheFirstBlockOfAJpegFile) {
  const Image image = test_image({8, 8});
  ImageFile file = encode_jpeg(image, {.orientation = 5});
  EXPECT_EQ(jpeg_orientation(file), 5);
  EXPECT_EQ(jpeg_orientation(encode_jpeg(image)), 1);
  // Bytes that fill the space before a marker.
  file.insert(file.begin() + 2, 3, std::byte{0xff});
  EXPECT_EQ(jpeg_orientation(file), 5);
}

TEST(Exif, StaysWithinTheBytesWhateverTheyAre) {
  std::mt19937_64 random(test_seed());
  const ImageFile original =
      encode_jpeg(test_image({8, 8}), {.orientation = 5});
  for (int i = 0; i < 20'000; ++i) {
    // In memory of just this size, for the sanitizers.
    ImageFile file(
        original.begin(),
        original.begin() + static_cast<std::ptrdiff_t>(random() % 80));
    for (int change = 0; change < 3 && !file.empty(); ++change)
      file[random() % file.size()] = static_cast<std::byte>(random());
    file.shrink_to_fit();
    const int orientation = jpeg_orientation(file);
    ASSERT_GE(orientation, 1);
    ASSERT_LE(orientation, 8);
  }
}

}  // namespace
}  // namespace lockstep
