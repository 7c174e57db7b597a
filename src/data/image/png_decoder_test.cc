#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/sanitized.h"
#include "src/base/testing/address_space.h"
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
  EXPECT_FALSE(reader.scales());
  reader.read(decoded);
  EXPECT_EQ(decoded.pixels, expected());
}

std::string png_message(const ImageFile& file,
                        const DecodeOptions& options = {}) {
  return error_text([&] { decode_image(file, "a.png", options); });
}

constexpr std::size_t kChecksumBytes = 4;

// Where the data of the first chunk `type` begin.
std::size_t data_of(const ImageFile& file, std::string_view type) {
  const auto letters = std::as_bytes(std::span(type));
  const auto found =
      std::search(file.begin(), file.end(), letters.begin(), letters.end());
  EXPECT_NE(found, file.end());
  return static_cast<std::size_t>(found - file.begin()) + type.size();
}

TEST_P(PngForms, AreRefusedWhereverTheyAreCutInTheirPixels) {
  const ImageFile whole = file();
  ImageReader reader;
  for (std::size_t size = 0; size < data_of(whole, "IEND") - 8; ++size) {
    const ImageFile cut = start_of(whole, size);
    // Not at the first read alone: a reader of a region may need less.
    EXPECT_THAT(error_text([&] { reader.open(cut, "a.png"); }),
                AllOf(HasSubstr("cannot read a.png"),
                      HasSubstr(size < 8 ? "neither" : "it is truncated"),
                      HasSubstr("next: ")))
        << size << " of " << whole.size();
  }
}

TEST_P(PngForms, AreReadWhereverTheyAreCutBehindTheirPixels) {
  const ImageFile whole = file();
  for (std::size_t size = data_of(whole, "IEND") - 8; size < whole.size();
       ++size)
    EXPECT_EQ(decode_image(start_of(whole, size), "a.png").pixels, expected());
  check_regions(start_of(whole, whole.size() - 1));
}

TEST_P(PngForms, MayBeFollowedByOtherBytes) {
  ImageFile stored = file();
  stored.insert(stored.end(), 100, std::byte{0x55});
  EXPECT_EQ(decode_image(stored, "a.png").pixels, expected());
}

void read_first_row(const ImageFile& file) {
  ImageReader reader;
  const ImageSize size = reader.open(file, "a.png", DecodeOptions());
  Image row;
  reader.read({.size = {1, size.width}}, 1, row);
}

// Any byte of a file is in a checksum, or is one, or makes the file another.
TEST_P(PngForms, AreRefusedOrReadWholeWhicheverByteIsChanged) {
  const ImageFile whole = file();
  const std::size_t checksum = data_of(whole, "IEND") - 8 - kChecksumBytes;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    ImageFile changed = whole;
    changed[at] ^= std::byte{0x10};
    Image image;
    const std::string message =
        error_text([&] { image = decode_image(changed, "a.png"); });
    if (message == "no error")
      EXPECT_EQ(image.pixels, expected()) << at;
    else
      EXPECT_THAT(message, HasSubstr("cannot read a.png"));
    EXPECT_TRUE(at < checksum || message == "no error") << at;
    // A reader of the first row alone finds the same.
    EXPECT_EQ(error_text([&] { read_first_row(changed); }) == "no error",
              message == "no error")
        << at;
  }
}

void set_number(ImageFile& bytes, std::size_t at, std::uint32_t number) {
  for (const int shift : {24, 16, 8, 0})
    bytes[at++] = static_cast<std::byte>(number >> shift);
}

// The file, with the data of its first chunk `type` changed and the checksum
// right.
ImageFile with_chunk(const ImageFile& file, std::string_view type,
                     const std::function<void(ImageFile&)>& change) {
  const auto found =
      file.begin() + static_cast<std::ptrdiff_t>(data_of(file, type)) - 4;
  ImageFile chunk(found - 4, file.end());
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < 4; ++i)
    length = length << 8 | std::to_integer<std::uint32_t>(chunk[i]);
  ImageFile data(chunk.begin() + 8, chunk.begin() + 8 + length);
  const ImageFile rest(chunk.begin() + 12 + length, chunk.end());
  change(data);
  chunk.resize(8);
  set_number(chunk, 0, static_cast<std::uint32_t>(data.size()));
  chunk.insert(chunk.end(), data.begin(), data.end());
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(&chunk[4]),
                         static_cast<uInt>(data.size() + 4));
  chunk.resize(chunk.size() + 4);
  set_number(chunk, chunk.size() - 4, static_cast<std::uint32_t>(sum));
  chunk.insert(chunk.begin(), file.begin(), found - 4);
  chunk.insert(chunk.end(), rest.begin(), rest.end());
  return chunk;
}

ImageFile stating(std::uint32_t height, std::uint32_t width) {
  return with_chunk(encode_png(test_image({4, 4})), "IHDR",
                    [&](ImageFile& header) {
                      set_number(header, 0, width);
                      set_number(header, 4, height);
                    });
}

TEST(Png, RefusesTooManyPixelsBeforeItAsksForMemory) {
  EXPECT_EQ(image_size(stating(1 << 30, 3000), "a.png"),
            (ImageSize{1 << 30, 3000}));
  EXPECT_THAT(png_message(stating(1 << 30, 3000)),
              AllOf(HasSubstr("3000 x 1073741824"), HasSubstr("max_pixels")));
  EXPECT_THAT(png_message(stating(0xffffffff, 0xffffffff)),
              HasSubstr("max_pixels"));
}

[[noreturn]] void look_at_a_wide_file() {
  if (!limit_address_space(std::uint64_t{1} << 28)) std::_Exit(2);
  std::_Exit(
      image_size(stating(1, 0x7fff'ffff), "wide").width == 0x7fff'ffff ? 0 : 1);
}

TEST(Png, TellsTheSizeOfAWideFileWithoutMemoryForARow) {
  if (kSanitized) GTEST_SKIP() << "sanitizers keep memory of their own";
  EXPECT_EXIT(look_at_a_wide_file(), testing::ExitedWithCode(0), "");
}

TEST(Png, RefusesAnEmptyImageAndTooFewRows) {
  EXPECT_THAT(png_message(stating(0, 4)), HasSubstr("Invalid IHDR data"));
  EXPECT_THAT(png_message(stating(4, 0)), HasSubstr("Invalid IHDR data"));
  EXPECT_THAT(png_message(stating(500, 4)),
              AllOf(HasSubstr("it is damaged"), HasSubstr("image data")));
}

TEST(Png, RefusesOnePixelMoreThanTheLimit) {
  const ImageFile file = encode_png(test_image({15, 17}));
  EXPECT_EQ(png_message(file, {.max_pixels = 15 * 17}), "no error");
  EXPECT_THAT(png_message(file, {.max_pixels = 15 * 17 - 1}),
              HasSubstr("at most 254 pixels"));
}

TEST(Png, RefusesSixteenBits) {
  EXPECT_THAT(png_message(encode_png(test_image({4, 4}), {.bits = 16})),
              AllOf(HasSubstr("16 bits per sample"), HasSubstr("next: ")));
}

TEST(Png, RefusesCompressedDataThatEndWithAWrongChecksum) {
  const ImageFile file =
      with_chunk(encode_png(test_image({4, 4})), "IDAT",
                 [](ImageFile& data) { data.back() ^= std::byte{1}; });
  EXPECT_THAT(png_message(file), HasSubstr("incorrect data check"));
}

TEST(Png, IsReadWithMoreDataThanTheImageHas) {
  const Image image = test_image({40, 40});
  const ImageFile file = encode_png(image);
  const ImageFile more = with_chunk(
      file, "IDAT", [](ImageFile& data) { data.resize(data.size() + 9); });
  EXPECT_EQ(decode_image(more, "a.png").pixels, image.pixels);
  // A header of fewer rows than the data have.
  const ImageFile rows = with_chunk(
      file, "IHDR", [](ImageFile& header) { set_number(header, 4, 39); });
  EXPECT_EQ(decode_image(rows, "a.png").pixels,
            region_of(image, {.size = {39, 40}}).pixels);
}

TEST(Png, IsRefusedIfBothChecksumsOfThePixelsAreWrong) {
  const Image image = test_image({4, 4});
  ImageFile file = encode_png(image);
  const std::size_t checksum = data_of(file, "IEND") - 8 - kChecksumBytes;
  file[checksum] ^= std::byte{1};
  EXPECT_EQ(decode_image(file, "a.png").pixels, image.pixels);
  check_regions(file);
  file[checksum - 1] ^= std::byte{1};  // of the compressed data
  EXPECT_THAT(png_message(file), HasSubstr("it is damaged"));
}

TEST(Png, IsReadIfItsDataNeedALargerWindowThanTheyState) {
  const Image image = test_image({60, 80});
  const ImageFile file =
      with_chunk(encode_png(image), "IDAT", [](ImageFile& data) {
        data[0] = std::byte{0x08};  // 256 bytes
        data[1] = std::byte{0x1d};
      });
  EXPECT_EQ(decode_image(file, "a.png").pixels, image.pixels);
}

TEST(Png, DecodesAColorThatIsNotInThePaletteToBlack) {
  const Image image = test_image({20, 20});  // its red is the index
  const ImageFile file =
      with_chunk(encode_png(image, {.color = PngColor::kPalette}), "PLTE",
                 [](ImageFile& data) { data.resize(3); });
  Pixels expected(image.pixels.size());
  for (std::size_t at = 0; at < expected.size(); at += 3)
    if (image.pixels[at] == 0)
      std::ranges::copy(palette_color(0), &expected[at]);
  EXPECT_EQ(decode_image(file, "a.png").pixels, expected);
}

TEST(Png, RefusesAFileWithoutAHeader) {
  ImageFile file = encode_png(test_image({4, 4}));
  file[12] = std::byte{'J'};
  EXPECT_THAT(png_message(file), HasSubstr("its header is missing"));
}

}  // namespace
}  // namespace lockstep
