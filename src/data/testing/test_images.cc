#include "src/data/testing/test_images.h"

#include <cstdio>
// libjpeg's headers need <cstdio> first.
#include <jpeglib.h>
#include <png.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <random>
#include <span>

namespace lockstep {
namespace {

using Pixels = std::vector<std::uint8_t>;

// Neither library lets its error function return.
[[noreturn]] void fail_jpeg(j_common_ptr object) {
  std::array<char, JMSG_LENGTH_MAX> text{};
  object->err->format_message(object, text.data());
  std::fprintf(stderr, "libjpeg: %s\n", text.data());
  std::abort();
}

[[noreturn]] void fail_png(png_structp /*png*/, png_const_charp text) {
  std::fprintf(stderr, "libpng: %s\n", text);
  std::abort();
}

ImageFile as_file(const std::uint8_t* bytes, std::size_t count) {
  const auto span = std::as_bytes(std::span(bytes, count));
  return {span.begin(), span.end()};
}

void set_form(jpeg_compress_struct& object, const JpegForm& form) {
  jpeg_set_quality(&object, form.quality, TRUE);
  if (object.num_components > 1) {
    object.comp_info[0].h_samp_factor = form.horizontal_sampling;
    object.comp_info[0].v_samp_factor = form.vertical_sampling;
  }
  if (form.inks == JpegInks::kYcck) {
    object.comp_info[3].h_samp_factor = form.horizontal_sampling;
    object.comp_info[3].v_samp_factor = form.vertical_sampling;
  }
  object.restart_interval = form.restart_interval;
  object.arith_code = form.coding == JpegCoding::kArithmetic ? TRUE : FALSE;
  if (form.coding == JpegCoding::kProgressive) jpeg_simple_progression(&object);
}

Pixels with_fourth_ink(const Pixels& pixels) {
  Pixels inks;
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    inks.push_back(pixels[i]);
    // Of many values, and smooth, as in a photo.
    if (i % 3 == 2)
      inks.push_back(static_cast<std::uint8_t>(255 - pixels[i - 1] / 2));
  }
  return inks;
}

void write_jpeg(jpeg_compress_struct& object, const Image& image,
                const JpegForm& form) {
  object.image_height = static_cast<JDIMENSION>(image.size.height);
  object.image_width = static_cast<JDIMENSION>(image.size.width);
  const bool inks = form.inks != JpegInks::kNone;
  object.input_components = inks ? 4 : static_cast<int>(image.channels);
  object.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  if (inks) object.in_color_space = JCS_CMYK;
  jpeg_set_defaults(&object);
  if (form.inks == JpegInks::kYcck) jpeg_set_colorspace(&object, JCS_YCCK);
  set_form(object, form);
  std::vector<jpeg_scan_info> scans(4);
  if (form.coding == JpegCoding::kSeparateScans) {
    for (int i = 0; i < object.num_components; ++i)
      scans[i] = {.comps_in_scan = 1,
                  .component_index = {i},
                  .Ss = 0,
                  .Se = 63,
                  .Ah = 0,
                  .Al = 0};
    object.scan_info = scans.data();
    object.num_scans = object.num_components;
  }
  jpeg_start_compress(&object, TRUE);
  if (form.orientation != 0) {
    Pixels block = {'E', 'x', 'i', 'f', 0, 0};
    const Pixels exif = exif_block(form.orientation);
    block.insert(block.end(), exif.begin(), exif.end());
    jpeg_write_marker(&object, JPEG_APP0 + 1, block.data(),
                      static_cast<unsigned>(block.size()));
  }
  Pixels pixels = inks ? with_fourth_ink(image.pixels) : image.pixels;
  const std::size_t row_bytes =
      object.image_width * static_cast<std::size_t>(object.input_components);
  for (JDIMENSION row = 0; row < object.image_height; ++row) {
    JSAMPROW start = pixels.data() + row * row_bytes;
    jpeg_write_scanlines(&object, &start, 1);
  }
  jpeg_finish_compress(&object);
}

struct PngKind {
  int color_type = PNG_COLOR_TYPE_RGB;
  std::size_t channels = 3;
};

PngKind kind_of(const Image& image, PngColor color) {
  const bool gray = image.channels == 1;
  switch (color) {
    case PngColor::kPlain:
      if (gray) return {PNG_COLOR_TYPE_GRAY, 1};
      return {PNG_COLOR_TYPE_RGB, 3};
    case PngColor::kAlpha:
      if (gray) return {PNG_COLOR_TYPE_GRAY_ALPHA, 2};
      return {PNG_COLOR_TYPE_RGB_ALPHA, 4};
    case PngColor::kPalette:
      return {PNG_COLOR_TYPE_PALETTE, 1};
  }
  std::abort();
}

// One sample per byte, or two bytes where there are 16 bits.
Pixels png_samples(const Image& image, const PngForm& form,
                   std::size_t channels) {
  Pixels samples;
  const auto stored = static_cast<std::size_t>(image.channels);
  for (std::size_t at = 0; at < image.pixels.size(); at += stored)
    for (std::size_t channel = 0; channel < channels; ++channel) {
      // An alpha of any value.
      const std::uint8_t value = channel < stored
                                     ? image.pixels[at + channel]
                                     : static_cast<std::uint8_t>(at * 7);
      samples.push_back(
          form.bits < 8 ? static_cast<std::uint8_t>(value >> (8 - form.bits))
                        : value);
      if (form.bits == 16) samples.push_back(value);
    }
  return samples;
}

void write_png(png_structp png, png_infop info, const Image& image,
               const PngForm& form) {
  const auto [color_type, channels] = kind_of(image, form.color);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.size.width),
               static_cast<png_uint_32>(image.size.height), form.bits,
               color_type,
               form.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  std::vector<png_color> palette;
  for (int i = 0; i < 1 << std::min(form.bits, 8); ++i) {
    const auto color = palette_color(static_cast<std::uint8_t>(i));
    palette.push_back({color[0], color[1], color[2]});
  }
  if (form.color == PngColor::kPalette)
    png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  png_color_16 clear{.index = 0, .red = 0, .green = 0, .blue = 0, .gray = 0};
  png_byte clear_entry = 0;
  if (form.transparent_color) png_set_tRNS(png, info, &clear_entry, 1, &clear);
  Pixels exif = exif_block(form.orientation);
  if (form.orientation != 0)
    png_set_eXIf_1(png, info, static_cast<png_uint_32>(exif.size()),
                   exif.data());
  png_write_info(png, info);
  png_set_packing(png);
  Pixels samples = png_samples(image, form, channels);
  const std::size_t row_bytes =
      samples.size() / static_cast<std::size_t>(image.size.height);
  std::vector<png_bytep> rows;
  for (std::int64_t row = 0; row < image.size.height; ++row)
    rows.push_back(samples.data() + static_cast<std::size_t>(row) * row_bytes);
  png_write_image(png, rows.data());
  png_write_end(png, info);
}

void append_bytes(png_structp png, png_bytep bytes, std::size_t count) {
  auto& file = *static_cast<ImageFile*>(png_get_io_ptr(png));
  const ImageFile piece = as_file(bytes, count);
  file.insert(file.end(), piece.begin(), piece.end());
}

}  // namespace

Image test_image(const ImageSize& size, std::int64_t channels,
                 std::uint32_t seed) {
  std::mt19937 random(seed);
  Image image{.size = size, .channels = channels};
  for (std::int64_t row = 0; row < size.height; ++row)
    for (std::int64_t column = 0; column < size.width; ++column)
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        const auto along = static_cast<double>(channel == 0   ? row + column
                                               : channel == 1 ? row
                                                              : column);
        double value = 128 + 90 * std::sin(0.3 * along);
        if (row * column % 23 > 11) value += 50 * std::cos(0.9 * along);
        value += static_cast<double>(random() % 32);
        image.pixels.push_back(
            static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)));
      }
  return image;
}

ImageFile encode_jpeg(const Image& image, const JpegForm& form) {
  jpeg_error_mgr errors{};
  jpeg_compress_struct object{};
  object.err = jpeg_std_error(&errors);
  errors.error_exit = fail_jpeg;
  jpeg_create_compress(&object);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&object, &bytes, &count);
  write_jpeg(object, image, form);
  ImageFile file = as_file(bytes, count);
  jpeg_destroy_compress(&object);
  std::free(bytes);
  return file;
}

ImageFile encode_png(const Image& image, const PngForm& form) {
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr,
                                            fail_png, nullptr);
  png_infop info = png_create_info_struct(png);
  ImageFile file;
  png_set_write_fn(png, &file, append_bytes, nullptr);
  write_png(png, info, image, form);
  png_destroy_write_struct(&png, &info);
  return file;
}

std::vector<std::uint8_t> palette_color(std::uint8_t index) {
  return {static_cast<std::uint8_t>(index * 37),
          static_cast<std::uint8_t>(255 - index),
          static_cast<std::uint8_t>(index * 11 + 5)};
}

std::vector<std::uint8_t> exif_block(int orientation) {
  return {
      'M',  'M',  0, 42, 0, 0, 0, 8,  // the directory is at 8
      0,    1,                        // one entry
      0x01, 0x12, 0, 3,  0, 0, 0, 1, 0, static_cast<std::uint8_t>(orientation),
      0,    0,            // padding of the value
      0,    0,    0, 0};  // no other directory
}

ImageFile start_of(const ImageFile& file, std::size_t size) {
  return {file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size)};
}

}  // namespace lockstep
