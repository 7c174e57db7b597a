#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstring>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/data/image/image_reader.h"
#include "src/data/image/pixel_row.h"
#include "src/data/testing/image_regions.h"
#include "src/data/testing/test_images.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

using Pixels = std::vector<std::uint8_t>;

struct PngCase {
  std::string name;
  PngForm form{};
  std::int64_t channels = 3;
};

std::vector<PngCase> png_cases() {
  std::vector<PngCase> cases;
  for (const bool interlaced : {false, true}) {
    const std::string end = interlaced ? "Interlaced" : "";
    const auto add = [&](const std::string& name, PngForm form,
                         std::int64_t channels) {
      form.interlaced = interlaced;
      cases.push_back({.name = name + end, .form = form, .channels = channels});
    };
    add("Rgb", {}, 3);
    add("RgbAlpha", {.color = PngColor::kAlpha}, 3);
    add("RgbWithATransparentColor", {.transparent_color = true}, 3);
    add("GrayAlpha", {.color = PngColor::kAlpha}, 1);
    for (const int bits : {1, 2, 4, 8}) {
      const std::string text = std::to_string(bits);
      add("Gray" + text, {.bits = bits}, 1);
      add("GrayWithATransparentColor" + text,
          {.bits = bits, .transparent_color = true}, 1);
      add("Palette" + text, {.color = PngColor::kPalette, .bits = bits}, 3);
      add("PaletteWithATransparentColor" + text,
          {.color = PngColor::kPalette,
           .bits = bits,
           .transparent_color = true},
          3);
    }
  }
  return cases;
}

class PngForms : public testing::TestWithParam<PngCase> {
 protected:
  static Image image() { return test_image({21, 35}, GetParam().channels); }
  static ImageFile file() { return encode_png(image(), GetParam().form); }

  // What the file of image() holds.
  static Pixels expected() {
    const PngForm& form = GetParam().form;
    const Image original = image();
    const auto step = static_cast<std::size_t>(original.channels);
    Pixels rgb;
    for (std::size_t at = 0; at < original.pixels.size(); at += step) {
      const std::uint8_t first = original.pixels[at];
      const int upper = first >> (8 - form.bits);
      const auto gray =
          static_cast<std::uint8_t>(upper * 255 / ((1 << form.bits) - 1));
      Pixels pixel = {gray, gray, gray};
      if (step == 3)
        pixel = {first, original.pixels[at + 1], original.pixels[at + 2]};
      if (form.color == PngColor::kPalette)
        pixel = palette_color(static_cast<std::uint8_t>(upper));
      rgb.insert(rgb.end(), pixel.begin(), pixel.end());
    }
    return rgb;
  }
};

INSTANTIATE_TEST_SUITE_P(All, PngForms, testing::ValuesIn(png_cases()),
                         [](const auto& each) { return each.param.name; });

TEST_P(PngForms, DecodeToRgb) {
  const Image decoded = decode_image(file(), "a.png");
  EXPECT_EQ(image_size(file(), "a.png"), image().size);
  EXPECT_EQ(decoded.size, image().size);
  EXPECT_EQ(decoded.channels, 3);
  EXPECT_EQ(decoded.pixels, expected());
}

TEST_P(PngForms, DecodeToGray) {
  const Image decoded =
      decode_image(file(), "a.png", {.color = ImageColor::kGray});
  EXPECT_EQ(decoded.channels, 1);
  const Pixels rgb = expected();
  Pixels gray;
  for (std::size_t at = 0; at < rgb.size(); at += 3)
    gray.push_back(gray_of(rgb.data() + at));
  EXPECT_EQ(decoded.pixels, gray);
}

TEST_P(PngForms, DecodeARegionToThePixelsOfTheWhole) { check_regions(file()); }

TEST_P(PngForms, AreNotScaledButStillRead) {
  ImageReader reader;
  Image decoded;
  const ImageFile stored = file();
  reader.open(stored, "a.png");
  EXPECT_FALSE(reader.read_scaled(2, decoded));
  EXPECT_TRUE(decoded.pixels.empty());
  reader.read(decoded);
  EXPECT_EQ(decoded.pixels, expected());
}

std::string message_of(const ImageFile& file,
                       const DecodeOptions& options = {}) {
  return error_text([&] { decode_image(file, "a.png", options); });
}

ImageFile start_of(const ImageFile& file, std::size_t size) {
  return {file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)};
}

TEST_P(PngForms, AreRefusedWhereverTheyAreCut) {
  const ImageFile whole = file();
  ImageReader reader;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const ImageFile cut = start_of(whole, size);
    // Not at the first read alone: a reader of a region may need less.
    EXPECT_THAT(error_text([&] { reader.open(cut, "a.png"); }),
                AllOf(HasSubstr("cannot read a.png"),
                      HasSubstr(size < 8 ? "neither" : "it is truncated"),
                      HasSubstr("next: ")))
        << size << " of " << whole.size();
  }
}

TEST_P(PngForms, MayBeFollowedByOtherBytes) {
  ImageFile stored = file();
  stored.insert(stored.end(), 100, std::byte{0x55});
  EXPECT_EQ(decode_image(stored, "a.png").pixels, expected());
}

// Not only the pixels': any byte of a file is in a checksum, or is one, or
// makes the file another.
TEST_P(PngForms, AreRefusedWhicheverByteIsChanged) {
  const ImageFile whole = file();
  for (std::size_t at = 0; at < whole.size(); ++at) {
    ImageFile changed = whole;
    changed[at] ^= std::byte{0x10};
    EXPECT_THAT(message_of(changed), HasSubstr("cannot read a.png")) << at;
  }
}

void set_number(ImageFile& file, std::size_t at, std::uint32_t number) {
  for (const int shift : {24, 16, 8, 0})
    file[at++] = static_cast<std::byte>(number >> shift);
}

constexpr std::size_t kWidthAt = 16;

// A PNG file whose header states this size, with a right checksum.
ImageFile stating(std::uint32_t height, std::uint32_t width) {
  ImageFile file = encode_png(test_image({4, 4}));
  set_number(file, kWidthAt, width);
  set_number(file, kWidthAt + 4, height);
  const auto* const start = reinterpret_cast<const Bytef*>(&file[12]);
  set_number(file, 29, static_cast<std::uint32_t>(crc32(0, start, 17)));
  return file;
}

TEST(Png, RefusesTooManyPixelsBeforeItAsksForMemory) {
  EXPECT_EQ(image_size(stating(1 << 30, 3000), "a.png"),
            (ImageSize{1 << 30, 3000}));
  EXPECT_THAT(message_of(stating(1 << 30, 3000)),
              AllOf(HasSubstr("3000 x 1073741824"), HasSubstr("max_pixels")));
  EXPECT_THAT(message_of(stating(0xffffffff, 0xffffffff)),
              HasSubstr("max_pixels"));
}

TEST(Png, RefusesAnEmptyImageAndTooFewRows) {
  EXPECT_THAT(message_of(stating(0, 4)), HasSubstr("Invalid IHDR data"));
  EXPECT_THAT(message_of(stating(4, 0)), HasSubstr("Invalid IHDR data"));
  EXPECT_THAT(message_of(stating(500, 4)),
              AllOf(HasSubstr("it is damaged"), HasSubstr("image data")));
}

TEST(Png, RefusesOnePixelMoreThanTheLimit) {
  const ImageFile file = encode_png(test_image({15, 17}));
  EXPECT_EQ(message_of(file, {.max_pixels = 15 * 17}), "no error");
  EXPECT_THAT(message_of(file, {.max_pixels = 15 * 17 - 1}),
              HasSubstr("at most 254 pixels"));
}

TEST(Png, RefusesSixteenBits) {
  EXPECT_THAT(message_of(encode_png(test_image({4, 4}), {.bits = 16})),
              AllOf(HasSubstr("16 bits per sample"), HasSubstr("next: ")));
}

TEST(Png, RefusesCompressedDataThatEndWithAWrongChecksum) {
  ImageFile file = encode_png(test_image({4, 4}));
  // The last four bytes of the last chunk of pixels, which IEND follows.
  const std::size_t chunk_end = file.size() - 12;
  const std::size_t data_end = chunk_end - 4;
  file[data_end - 1] ^= std::byte{1};
  std::size_t start = data_end - 4;
  while (std::memcmp(&file[start], "IDAT", 4) != 0) --start;
  const auto* const bytes = reinterpret_cast<const Bytef*>(&file[start]);
  set_number(file, data_end,
             static_cast<std::uint32_t>(
                 crc32(0, bytes, static_cast<uInt>(data_end - start))));
  EXPECT_THAT(message_of(file), HasSubstr("incorrect data check"));
}

TEST(Png, RefusesAFileWithoutAHeader) {
  ImageFile file = encode_png(test_image({4, 4}));
  file[12] = std::byte{'J'};
  EXPECT_THAT(message_of(file), HasSubstr("its header is missing"));
}

}  // namespace
}  // namespace lockstep
