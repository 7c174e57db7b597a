// libFuzzer program for the decoder of images: it decodes the bytes to an image
// of the stated size, whole, in a region and scaled, or throws InvalidArgument.
// A region has the pixels of the whole image.
//
// Random bytes are seldom an image, so most inputs are edits of a small image:
// the first byte chooses it, the next ones how it is read, and each further
// three bytes are an edit, of a place and a value. Checksums of PNG are made
// right after every second choice, or the edits would not reach the pixels.
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "src/data/image/image_reader.h"
#include "src/data/testing/image_regions.h"
#include "src/data/testing/test_images.h"

namespace {

using lockstep::Image;
using lockstep::ImageFile;
using lockstep::ImageReader;
using lockstep::ImageRegion;
using lockstep::ImageSize;
using lockstep::JpegCoding;
using lockstep::PngColor;
using FuzzerBytes = std::span<const std::uint8_t>;

constexpr std::int64_t kMostPixels = 4096;

std::vector<ImageFile> small_images() {
  const Image color = lockstep::test_image({33, 40});
  const Image gray = lockstep::test_image({33, 40}, 1);
  return {
      {},  // the input itself
      lockstep::encode_jpeg(color, {.orientation = 6, .restart_interval = 2}),
      lockstep::encode_jpeg(color, {.coding = JpegCoding::kProgressive}),
      lockstep::encode_jpeg(color, {.horizontal_sampling = 1,
                                    .vertical_sampling = 1,
                                    .coding = JpegCoding::kSeparateScans}),
      lockstep::encode_jpeg(gray),
      lockstep::encode_png(color, {.orientation = 3}),
      lockstep::encode_png(color, {.color = PngColor::kPalette, .bits = 4}),
      lockstep::encode_png(gray,
                           {.color = PngColor::kAlpha, .interlaced = true}),
      lockstep::encode_jpeg(color, {.inks = lockstep::JpegInks::kYcck}),
  };
}

std::uint8_t take(FuzzerBytes& input) {
  if (input.empty()) return 0;
  const std::uint8_t first = input.front();
  input = input.subspan(1);
  return first;
}

void edit(ImageFile& file, FuzzerBytes input) {
  if (file.empty()) {
    const auto bytes = std::as_bytes(input);
    file.assign(bytes.begin(), bytes.end());
    return;
  }
  while (input.size() >= 3 && !file.empty()) {
    const std::size_t place = take(input) * 256U + take(input);
    const std::uint8_t value = take(input);
    const auto at =
        file.begin() + static_cast<std::ptrdiff_t>(place % file.size());
    switch (place >> 14) {
      case 0:
        file.erase(at);
        break;
      case 1:
        file.insert(at, static_cast<std::byte>(value));
        break;
      default:
        *at = static_cast<std::byte>(value);
    }
  }
}

// Gives each chunk of a PNG file the checksum of its bytes.
void correct_checksums(ImageFile& file) {
  constexpr std::size_t kBesides = 12;  // length, type and checksum
  for (std::size_t at = 8; at + kBesides <= file.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i)
      length = length << 8 | std::to_integer<std::size_t>(file[at + i]);
    if (length > file.size() - at - kBesides) return;
    const auto* const type = reinterpret_cast<const Bytef*>(&file[at + 4]);
    const auto sum = crc32(0, type, static_cast<uInt>(length + 4));
    for (std::size_t i = 0; i < 4; ++i)
      file[at + 8 + length + i] = static_cast<std::byte>(sum >> (24 - 8 * i));
    at += kBesides + length;
  }
}

void expect(bool fact) {
  if (!fact) std::abort();
}

bool fits(const Image& image, const ImageSize& size) {
  return image.size == size &&
         image.pixels.size() == static_cast<std::size_t>(
                                    size.height * size.width * image.channels);
}

ImageRegion choose_region(const ImageSize& size, FuzzerBytes& input) {
  const std::int64_t top = take(input) % size.height;
  const std::int64_t left = take(input) % size.width;
  return {.top = top,
          .left = left,
          .size = {.height = take(input) % (size.height - top) + 1,
                   .width = take(input) % (size.width - left) + 1}};
}

struct Readers {
  ImageReader reader{};
  Image image{};
  Image whole{};
};

// How the file is read; the numbers come from the input.
struct Choice {
  lockstep::DecodeOptions options{};
  int denominator = 1;
  FuzzerBytes region{};
};

bool decodes_whole(Readers& readers, const ImageFile& file,
                   const Choice& choice, int denominator) {
  try {
    const ImageSize size = readers.reader.open(file, "fuzz", choice.options);
    expect(size.height * size.width <= kMostPixels);
    const ImageSize scaled = scaled_size(size, denominator);
    readers.reader.read({.size = scaled}, denominator, readers.whole);
    expect(fits(readers.whole, scaled));
    return true;
  } catch (const lockstep::InvalidArgument&) {
    // Refusing the input is correct too.
    return false;
  }
}

void check_region(Readers& readers, const ImageFile& file, const Choice& choice,
                  int denominator) {
  const bool whole_decodes = decodes_whole(readers, file, choice, denominator);
  try {
    FuzzerBytes numbers = choice.region;
    const ImageSize size = readers.reader.open(file, "fuzz", choice.options);
    const ImageRegion region =
        choose_region(scaled_size(size, denominator), numbers);
    readers.reader.read(region, denominator, readers.image);
    expect(fits(readers.image, region.size));
    // Damage may lie outside the region.
    if (whole_decodes)
      expect(lockstep::region_of(readers.whole, region).pixels ==
             readers.image.pixels);
  } catch (const lockstep::InvalidArgument&) {
    expect(!whole_decodes);
  }
}

bool scales(Readers& readers, const ImageFile& file, const Choice& choice) {
  try {
    readers.reader.open(file, "fuzz", choice.options);
    return readers.reader.scales();
  } catch (const lockstep::InvalidArgument&) {
    return false;
  }
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  static const std::vector<ImageFile> images = small_images();
  static Readers readers;
  FuzzerBytes input(data, size);
  ImageFile file = images[take(input) % images.size()];
  const std::uint8_t how = take(input);
  Choice choice{.denominator = 1 << how % 4};
  choice.options.max_pixels = kMostPixels;
  if ((how & 4) != 0) choice.options.color = lockstep::ImageColor::kGray;
  if ((how & 8) != 0)
    choice.options.orientation = lockstep::ExifOrientation::kApply;
  choice.region = input.first(std::min<std::size_t>(input.size(), 4));
  edit(file, input.subspan(choice.region.size()));
  if ((how & 16) != 0) correct_checksums(file);
  file.shrink_to_fit();
  check_region(readers, file, choice, 1);
  if (choice.denominator != 1 && scales(readers, file, choice))
    check_region(readers, file, choice, choice.denominator);
  return 0;
}
