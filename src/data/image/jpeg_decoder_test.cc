#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
// libjpeg's headers need <cstdio> first.
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
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

struct JpegCase {
  std::string name;
  JpegForm form{};
  std::int64_t channels = 3;
};

std::vector<JpegCase> jpeg_cases() {
  const auto sampled = [](int horizontal, int vertical, JpegCoding coding) {
    return JpegForm{.quality = 85,
                    .horizontal_sampling = horizontal,
                    .vertical_sampling = vertical,
                    .coding = coding};
  };
  std::vector<JpegCase> cases;
  constexpr std::array<std::array<int, 2>, 8> kFactors = {
      {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}, {1, 4}, {2, 4}}};
  for (const auto& [horizontal, vertical] : kFactors)
    for (const auto& [coding, text] :
         {std::pair{JpegCoding::kBaseline, "Baseline"},
          std::pair{JpegCoding::kSeparateScans, "SeparateScans"},
          std::pair{JpegCoding::kProgressive, "Progressive"}})
      cases.push_back(
          {.name = text + std::to_string(horizontal) + std::to_string(vertical),
           .form = sampled(horizontal, vertical, coding)});
  cases.push_back({.name = "Gray", .channels = 1});
  cases.push_back({.name = "ProgressiveGray",
                   .form = sampled(1, 1, JpegCoding::kProgressive),
                   .channels = 1});
  cases.push_back({.name = "Restarts", .form = {.restart_interval = 3}});
  for (const auto& [inks, text] :
       {std::pair{JpegInks::kCmyk, "Cmyk"}, std::pair{JpegInks::kYcck, "Ycck"}})
    for (const auto& [coding, of] :
         {std::pair{JpegCoding::kBaseline, ""},
          std::pair{JpegCoding::kSeparateScans, "SeparateScans"},
          std::pair{JpegCoding::kProgressive, "Progressive"}})
      for (const int factor : {1, 2}) {
        JpegForm form = sampled(factor, factor, coding);
        form.inks = inks;
        cases.push_back(
            {.name = std::string(text) + of + std::to_string(factor),
             .form = form});
      }
  return cases;
}

class JpegForms : public testing::TestWithParam<JpegCase> {
 protected:
  static ImageFile file(const ImageSize& size) {
    return encode_jpeg(test_image(size, GetParam().channels), GetParam().form);
  }
};

INSTANTIATE_TEST_SUITE_P(All, JpegForms, testing::ValuesIn(jpeg_cases()),
                         [](const auto& each) { return each.param.name; });

bool has_inks(const jpeg_decompress_struct& object) {
  return object.num_components == 4;
}

std::vector<std::uint8_t> without_inks(const std::vector<std::uint8_t>& inks) {
  std::vector<std::uint8_t> pixels;
  for (std::size_t at = 0; at < inks.size(); at += 4)
    for (const std::uint8_t value : rgb_of_inks(inks.data() + at))
      pixels.push_back(value);
  return pixels;
}

// libjpeg's own way to decode a whole image; inks become colors one by one.
Image decode_plainly(const ImageFile& file, unsigned denominator = 1) {
  jpeg_error_mgr errors{};
  jpeg_decompress_struct object{};
  object.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&object);
  jpeg_mem_src(&object, reinterpret_cast<const unsigned char*>(file.data()),
               file.size());
  jpeg_read_header(&object, TRUE);
  object.out_color_space = has_inks(object) ? JCS_CMYK : JCS_RGB;
  object.scale_denom = denominator;
  jpeg_start_decompress(&object);
  Image image{.size = {object.output_height, object.output_width}};
  const std::size_t row_bytes =
      object.output_width * (has_inks(object) ? 4U : 3U);
  image.pixels.resize(object.output_height * row_bytes);
  while (object.output_scanline < object.output_height) {
    JSAMPROW row = image.pixels.data() + object.output_scanline * row_bytes;
    jpeg_read_scanlines(&object, &row, 1);
  }
  if (has_inks(object)) image.pixels = without_inks(image.pixels);
  jpeg_finish_decompress(&object);
  jpeg_destroy_decompress(&object);
  return image;
}

TEST_P(JpegForms, DecodeToTheDefaultPixelsOfLibjpeg) {
  for (const ImageSize& size : {ImageSize{1, 1}, ImageSize{7, 40},
                                ImageSize{40, 7}, ImageSize{51, 67}}) {
    const ImageFile stored = file(size);
    const Image image = decode_image(stored, "a.jpg");
    EXPECT_EQ(image_size(stored, "a.jpg"), size);
    EXPECT_EQ(image.size, size);
    EXPECT_EQ(image.channels, 3);
    EXPECT_EQ(image.pixels, decode_plainly(stored).pixels);
  }
}

TEST_P(JpegForms, DecodeToGrayOfTheirColors) {
  const ImageFile stored = file({51, 67});
  const Image image =
      decode_image(stored, "a.jpg", {.color = ImageColor::kGray});
  EXPECT_EQ(image.channels, 1);
  const std::vector<std::uint8_t> rgb = decode_plainly(stored).pixels;
  std::vector<std::uint8_t> expected;
  for (std::size_t at = 0; at < rgb.size(); at += 3)
    expected.push_back(gray_of(rgb.data() + at));
  EXPECT_EQ(image.pixels, expected);
}

TEST_P(JpegForms, DecodeARegionToThePixelsOfTheWhole) {
  const ImageFile stored = file({53, 67});
  check_regions(stored);
}

TEST(Jpeg, DecodesARegionToTheGrayPixelsOfTheWhole) {
  for (const std::int64_t channels : {1, 3})
    check_regions(encode_jpeg(test_image({53, 67}, channels)),
                  {.color = ImageColor::kGray});
}

TEST_P(JpegForms, DecodeAtAPartOfTheSize) {
  const ImageFile stored = file({51, 67});
  ImageReader reader;
  for (const int denominator : {1, 2, 4, 8}) {
    const Image expected =
        decode_plainly(stored, static_cast<unsigned>(denominator));
    EXPECT_EQ(expected.size.height, (51 + denominator - 1) / denominator);
    Image image;
    reader.open(stored, "a.jpg");
    ASSERT_TRUE(reader.scales());
    reader.read({.size = expected.size}, denominator, image);
    EXPECT_EQ(image.pixels, expected.pixels);
  }
}

TEST_P(JpegForms, DecodeARegionAtAPartOfTheSizeToThePixelsOfTheWhole) {
  const ImageFile stored = file({70, 90});
  for (const int denominator : {2, 4, 8}) {
    SCOPED_TRACE(denominator);
    check_regions(stored, {}, denominator);
  }
}

std::string jpeg_message(const ImageFile& file,
                         const DecodeOptions& options = {}) {
  return error_text([&] { decode_image(file, "a.jpg", options); });
}

TEST_P(JpegForms, AreRefusedWhereverTheyAreCut) {
  const ImageFile whole = file({20, 20});
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THAT(jpeg_message(start_of(whole, size)),
                AllOf(HasSubstr("cannot read a.jpg"), HasSubstr("offset: "),
                      HasSubstr("next: ")))
        << size << " of " << whole.size();
  EXPECT_THAT(jpeg_message(start_of(whole, whole.size() - 1)),
              HasSubstr("truncated"));
}

TEST_P(JpegForms, AreRefusedWhereverTheyAreCutIfOnlyTheTopIsWanted) {
  const ImageFile whole = file({60, 20});
  ImageReader reader;
  Image image;
  const auto read_top = [&](const ImageFile& contents) {
    reader.open(contents, "a.jpg");
    reader.read({.size = {2, 20}}, image);
  };
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const ImageFile cut = start_of(whole, size);
    EXPECT_THAT(error_text([&] { read_top(cut); }), HasSubstr("offset: "))
        << size << " of " << whole.size();
  }
  read_top(whole);
}

TEST_P(JpegForms, MayBeFollowedByOtherBytes) {
  ImageFile stored = file({20, 20});
  const Image image = decode_image(stored, "a.jpg");
  stored.insert(stored.end(), 100, std::byte{0x55});
  EXPECT_EQ(decode_image(stored, "a.jpg").pixels, image.pixels);
}

ImageFile with_bytes_at(ImageFile file, std::size_t at, std::size_t count,
                        std::byte value) {
  file.insert(file.begin() + static_cast<std::ptrdiff_t>(at), count, value);
  return file;
}

TEST_P(JpegForms, AreReadWithPaddingBeforeTheirEnd) {
  const ImageFile whole = file({60, 20});
  const Image image = decode_image(whole, "a.jpg");
  for (const std::size_t count : {1, 2, 5, 7, 9, 12, 100, 5000})
    EXPECT_EQ(decode_image(
                  with_bytes_at(whole, whole.size() - 2, count, std::byte{0}),
                  "a.jpg")
                  .pixels,
              image.pixels)
        << count;
  EXPECT_EQ(
      decode_image(with_bytes_at(whole, whole.size() - 2, 20, std::byte{0x20}),
                   "a.jpg")
          .pixels,
      image.pixels);
}

std::size_t place_of(const ImageFile& file, int marker) {
  for (std::size_t at = 0; at + 1 < file.size(); ++at)
    if (file[at] == std::byte{0xff} &&
        std::to_integer<int>(file[at + 1]) == marker)
      return at;
  ADD_FAILURE() << "no marker " << marker;
  return 0;
}

constexpr int kBaselineFrame = 0xc0;
constexpr int kStartOfScan = 0xda;
constexpr int kAdobe = 0xee;

TEST(Jpeg, RefusesDamagedData) {
  ImageFile file = encode_jpeg(test_image({64, 64}));
  const std::size_t middle = (place_of(file, kStartOfScan) + file.size()) / 2;
  // A marker that does not belong there.
  file[middle] = std::byte{0xff};
  file[middle + 1] = std::byte{0xd5};
  EXPECT_THAT(jpeg_message(file),
              AllOf(HasSubstr("it is damaged"), HasSubstr("Corrupt JPEG")));
}

TEST(Jpeg, RefusesOtherDataThanPaddingBeforeItsEnd) {
  const ImageFile whole = encode_jpeg(test_image({64, 64}));
  ImageFile zeroed = whole;
  std::fill(zeroed.end() - 902, zeroed.end() - 2, std::byte{0});
  EXPECT_THAT(jpeg_message(zeroed), HasSubstr("it is damaged"));
  ImageFile more = whole;
  const ImageFile data(whole.end() - 102, whole.end() - 2);
  more.insert(more.end() - 2, data.begin(), data.end());
  EXPECT_THAT(jpeg_message(more), HasSubstr("extraneous bytes"));
}

TEST(Jpeg, IsReadDespiteWarningsThatLoseNoPixel) {
  const auto warned = [](ImageFile file, std::size_t at, int value) {
    EXPECT_NE(file[at], std::byte(value));
    file[at] = std::byte(value);
    return file;
  };
  const ImageFile whole = encode_jpeg(test_image({64, 64}));
  const Image image = decode_image(whole, "a.jpg");
  constexpr int kJfif = 0xe0;
  constexpr int kQuantization = 0xdb;
  const std::size_t scan = place_of(whole, kStartOfScan);
  for (const ImageFile& file :
       {warned(whole, place_of(whole, kJfif) + 9, 2),  // the version
        warned(whole, scan + 12, 0),  // the last coefficient: always 63
        with_bytes_at(whole, place_of(whole, kQuantization), 5,
                      std::byte{'x'})})
    EXPECT_EQ(decode_image(file, "a.jpg").pixels, image.pixels);
  check_regions(with_bytes_at(whole, whole.size() - 2, 12, std::byte{0}));
  const ImageFile inks =
      encode_jpeg(test_image({20, 30}), {.inks = JpegInks::kYcck});
  EXPECT_EQ(decode_image(warned(inks, place_of(inks, kAdobe) + 15, 7), "a.jpg")
                .pixels,
            decode_image(inks, "a.jpg").pixels);
}

TEST(Jpeg, RefusesFormsThatAreNotConverted) {
  const Image image = test_image({16, 16});
  EXPECT_THAT(
      jpeg_message(encode_jpeg(image, {.coding = JpegCoding::kArithmetic})),
      AllOf(HasSubstr("arithmetic-coded"), HasSubstr("next: ")));
  ImageFile file = encode_jpeg(image);
  const std::size_t frame = place_of(file, kBaselineFrame);
  file[frame + 4] = std::byte{12};  // bits
  EXPECT_THAT(jpeg_message(file), HasSubstr("12 bits per sample"));
  file[frame + 4] = std::byte{8};
  file[frame + 1] = std::byte{0xc3};
  EXPECT_THAT(jpeg_message(file), HasSubstr("lossless"));
}

TEST(Jpeg, RefusesTooManyPixelsBeforeItAsksForMemory) {
  for (const JpegInks inks : {JpegInks::kNone, JpegInks::kCmyk}) {
    ImageFile file =
        encode_jpeg(test_image({16, 16}),
                    {.coding = JpegCoding::kSeparateScans, .inks = inks});
    const std::size_t frame = place_of(file, kBaselineFrame);
    for (const std::size_t at : {5U, 6U, 7U, 8U})
      file[frame + at] = std::byte{0xfd};
    EXPECT_EQ(image_size(file, "a.jpg"), (ImageSize{65021, 65021}));
    EXPECT_THAT(jpeg_message(file),
                AllOf(HasSubstr("65021 x 65021"), HasSubstr("89478485 pixels"),
                      HasSubstr("max_pixels")));
  }
}

// Removes Adobe's marker, which says how components are stored.
ImageFile without_adobe(ImageFile file) {
  const auto at =
      file.begin() + static_cast<std::ptrdiff_t>(place_of(file, kAdobe));
  file.erase(at, at + 2 + std::to_integer<int>(at[3]));
  return file;
}

// The expected colors are Pillow 13's, of inks that are 255 minus `stored`:
//   Image.frombytes("CMYK", (1, 1), inks).convert("RGB").getpixel((0, 0))
TEST(Jpeg, ConvertsInksAsPilDoes) {
  using Bytes = std::vector<std::uint8_t>;
  struct Inks {
    Bytes stored;
    Bytes rgb;
  };
  const Inks all[] = {
      {{255, 255, 255, 255}, {255, 255, 255}},
      {{0, 0, 0, 0}, {0, 0, 0}},
      {{0, 255, 255, 255}, {0, 255, 255}},
      {{255, 255, 255, 0}, {0, 0, 0}},
      {{254, 253, 252, 251}, {250, 249, 248}},
      {{155, 105, 55, 205}, {125, 84, 44}},
      {{55, 242, 178, 127}, {27, 121, 89}},
      {{1, 254, 128, 254}, {1, 253, 127}},
      {{127, 127, 127, 127}, {63, 63, 63}},
      {{218, 164, 15, 238}, {203, 153, 14}},
  };
  for (const auto& [stored, rgb] : all) {
    Image converted{.size = {1, 1}};
    converted.pixels.resize(3);
    copy_pixels({.decoded_channels = 4}, stored.data(), 1,
                converted.pixels.data());
    EXPECT_EQ(converted.pixels, rgb) << testing::PrintToString(stored);
  }
}

TEST(Jpeg, TakesInksAsInvertedAlsoWithoutAdobesMarker) {
  const ImageFile file =
      encode_jpeg(test_image({20, 30}), {.inks = JpegInks::kCmyk});
  const ImageFile bare = without_adobe(file);
  ASSERT_LT(bare.size(), file.size());
  EXPECT_EQ(decode_image(bare, "a.jpg").pixels,
            decode_image(file, "a.jpg").pixels);
}

TEST(Jpeg, RefusesOnePixelMoreThanTheLimit) {
  const ImageFile file = encode_jpeg(test_image({15, 17}));
  EXPECT_EQ(jpeg_message(file, {.max_pixels = 15 * 17}), "no error");
  EXPECT_THAT(jpeg_message(file, {.max_pixels = 15 * 17 - 1}),
              HasSubstr("at most 254 pixels"));
}

TEST(Jpeg, RefusesAnImageOfManyScans) {
  const ImageFile file =
      encode_jpeg(test_image({16, 16}), {.coding = JpegCoding::kSeparateScans});
  // A scan of the third component, again and again.
  std::size_t last = place_of(file, kStartOfScan);
  for (std::size_t at = last; at + 1 < file.size(); ++at)
    if (file[at] == std::byte{0xff} && file[at + 1] == std::byte{kStartOfScan})
      last = at;
  const auto with_scans = [&](int count) {
    ImageFile result = start_of(file, last);
    for (int i = 2; i < count; ++i)
      result.insert(result.end(),
                    file.begin() + static_cast<std::ptrdiff_t>(last),
                    file.end() - 2);
    result.insert(result.end(), {std::byte{0xff}, std::byte{0xd9}});
    return result;
  };
  EXPECT_EQ(jpeg_message(with_scans(500)), "no error");
  EXPECT_THAT(
      jpeg_message(with_scans(501)),
      AllOf(HasSubstr("too many scans"), HasSubstr("at most 500 scans")));
}

TEST(Jpeg, DecodesARegionWhereLibjpegGuessesCoefficients) {
  // A progressive file of its first scan only: libjpeg smooths the blocks.
  ImageFile file =
      encode_jpeg(test_image({53, 67}), {.coding = JpegCoding::kProgressive});
  const std::size_t first = place_of(file, kStartOfScan);
  std::size_t end = first + 2;
  while (file[end] != std::byte{0xff} || file[end + 1] == std::byte{0}) ++end;
  file.resize(end);
  file.insert(file.end(), {std::byte{0xff}, std::byte{0xd9}});
  EXPECT_EQ(decode_image(file, "a.jpg").pixels, decode_plainly(file).pixels);
  check_regions(file);
}

TEST(Jpeg, RefusesAFileWithoutTablesAfterOneThatHasThem) {
  const ImageFile whole = encode_jpeg(test_image({16, 16}));
  constexpr int kQuantization = 0xdb;
  ImageFile bare = whole;
  for (int table = 0; table < 2; ++table) {
    const auto at = bare.begin() +
                    static_cast<std::ptrdiff_t>(place_of(bare, kQuantization));
    bare.erase(at, at + 2 + 67);
  }
  ImageReader reader;
  Image image;
  reader.open(whole, "whole.jpg");
  reader.read(image);
  const auto read_bare = [&] {
    reader.open(bare, "bare.jpg");
    reader.read(image);
  };
  EXPECT_THAT(error_text(read_bare), HasSubstr("Quantization table"));
}

}  // namespace
}  // namespace lockstep
