#include "src/data/image/image_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/data_file.h"
#include "src/data/image/image_decoder.h"
#include "src/data/image/image_error.h"
#include "src/data/image/orientation.h"

namespace lockstep {
namespace {

using Bytes = std::span<const std::byte>;

bool has_at(Bytes contents, std::size_t at, std::string_view text) {
  const Bytes expected = std::as_bytes(std::span(text));
  return contents.size() >= at + expected.size() &&
         std::equal(expected.begin(), expected.end(),
                    contents.begin() + static_cast<std::ptrdiff_t>(at));
}

constexpr std::string_view kJpegStart = "\xff\xd8";
constexpr std::string_view kPngStart = "\x89PNG\r\n\x1a\n";

// Throws InvalidArgument for contents that are neither JPEG nor PNG.
[[noreturn]] void refuse_format(Bytes contents, std::string_view name) {
  using namespace std::string_view_literals;
  struct OtherFormat {
    std::size_t at;
    std::string_view start;
    std::string_view form;
  };
  constexpr OtherFormat kOthers[] = {
      {0, "GIF8"sv, "it is a GIF file"},
      {8, "WEBP"sv, "it is a WebP file"},
      {0, "BM"sv, "it is a BMP file"},
      {0, "II*\0"sv, "it is a TIFF file"},
      {0, "MM\0*"sv, "it is a TIFF file"},
      {4, "ftypavif"sv, "it is an AVIF file"},
      {4, "ftyphei"sv, "it is a HEIF file"},
  };
  for (const OtherFormat& other : kOthers)
    if (has_at(contents, other.at, other.start))
      throw unsupported_image(name, other.form);
  const Bytes start = contents.first(std::min<std::size_t>(contents.size(), 8));
  std::string found = contents.empty() ? "an empty file" : "";
  for (const std::byte byte : start)
    found += fmt::format("{}{:02x}", found.empty() ? "" : " ",
                         std::to_integer<int>(byte));
  throw malformed_file({.file = std::string(name),
                        .problem = "it is neither a JPEG nor a PNG file",
                        .offset = 0,
                        .expected = "ff d8 or 89 50 4e 47 0d 0a 1a 0a",
                        .found = found});
}

bool is_inside(const ImageRegion& region, const ImageSize& size) {
  // The differences cannot overflow.
  return region.top >= 0 && region.left >= 0 && region.size.height > 0 &&
         region.size.width > 0 && region.size.height <= size.height &&
         region.size.width <= size.width &&
         region.top <= size.height - region.size.height &&
         region.left <= size.width - region.size.width;
}

}  // namespace

ImageSize scaled_size(const ImageSize& size, int denominator) {
  return {.height = (size.height + denominator - 1) / denominator,
          .width = (size.width + denominator - 1) / denominator};
}

ImageReader::ImageReader()
    : jpeg_(make_jpeg_decoder()), png_(make_png_decoder()) {}

ImageReader::~ImageReader() = default;

ImageSize ImageReader::open(Bytes contents, std::string_view name,
                            const DecodeOptions& options) {
  decoder_ = nullptr;
  ImageDecoder* decoder = nullptr;
  if (has_at(contents, 0, kJpegStart)) decoder = jpeg_.get();
  if (has_at(contents, 0, kPngStart)) decoder = png_.get();
  if (decoder == nullptr) refuse_format(contents, name);
  const StoredImage stored = decoder->open(contents, name, options);
  stored_size_ = stored.size;
  orientation_ =
      options.orientation == ExifOrientation::kApply ? stored.orientation : 1;
  decoder_ = decoder;
  return shown_size(stored_size_, orientation_);
}

void ImageReader::read(Image& image) {
  read({.size = shown_size(stored_size_, orientation_)}, image);
}

void ImageReader::read(const ImageRegion& region, Image& image) {
  read(region, 1, image);
}

bool ImageReader::scales() const {
  LOCKSTEP_CHECK(decoder_ != nullptr, "open() precedes scales()");
  return orientation_ == 1 && decoder_->scales();
}

void ImageReader::read(const ImageRegion& region, int denominator,
                       Image& image) {
  LOCKSTEP_CHECK(decoder_ != nullptr, "each open() allows one read()");
  if (denominator != 1 && denominator != 2 && denominator != 4 &&
      denominator != 8)
    throw InvalidArgument(fmt::format(
        "cannot decode at 1 / {} of the size\n  next: use 1, 2, 4 or 8",
        denominator));
  if (denominator != 1 && !scales())
    throw InvalidArgument(
        "cannot decode at a part of the size: only JPEG images without an "
        "orientation to apply\n  next: use 1");
  const ImageSize size =
      scaled_size(shown_size(stored_size_, orientation_), denominator);
  if (!is_inside(region, size))
    throw InvalidArgument(fmt::format(
        "cannot decode the region of {} x {} pixels at row {} and column {}: "
        "the image has {} x {} (height x width)\n"
        "  next: choose a region of at least one pixel within the image",
        region.size.height, region.size.width, region.top, region.left,
        size.height, size.width));
  ImageDecoder& decoder = *std::exchange(decoder_, nullptr);
  if (orientation_ == 1) {
    decoder.read(region, denominator, image);
    return;
  }
  decoder.read(stored_region(region, stored_size_, orientation_), 1, turned_);
  turn(turned_, orientation_, image);
}

}  // namespace lockstep
