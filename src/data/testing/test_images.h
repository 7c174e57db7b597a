// Images, and JPEG and PNG files of them, for tests.
//
// Threads: any thread.
// Errors:  what the libraries cannot encode ends the program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

using ImageFile = std::vector<std::byte>;

// Smooth colors with edges and noise, the same for the same arguments.
Image test_image(const ImageSize& size, std::int64_t channels = 3,
                 std::uint32_t seed = 1);

// The channels of an image are the first three of four inks, stored as they are
// or as luminance and chroma.
enum class JpegInks { kNone, kCmyk, kYcck };

enum class JpegCoding { kBaseline, kSeparateScans, kProgressive, kArithmetic };

struct JpegForm {
  int quality = 90;
  // How many samples of luminance there are beside one of chroma: 2 and 2 is
  // known as 4:2:0, 2 and 1 as 4:2:2.
  int horizontal_sampling = 2;
  int vertical_sampling = 2;
  JpegCoding coding = JpegCoding::kBaseline;
  int orientation = 0;  // of an EXIF block; 0: none is written
  unsigned restart_interval = 0;
  JpegInks inks = JpegInks::kNone;
};

ImageFile encode_jpeg(const Image& image, const JpegForm& form = {});

enum class PngColor { kPlain, kAlpha, kPalette };

struct PngForm {
  PngColor color = PngColor::kPlain;
  // 16, or for grey and for palettes 1, 2 and 4, too; then the upper bits of a
  // pixel, or of its red, are stored.
  int bits = 8;
  bool interlaced = false;
  bool transparent_color = false;  // a chunk tRNS
  int orientation = 0;             // of an EXIF block; 0: none is written
};

ImageFile encode_png(const Image& image, const PngForm& form = {});

// The color of `index` in the palette of encode_png().
std::vector<std::uint8_t> palette_color(std::uint8_t index);

// The first `size` bytes of a file.
ImageFile start_of(const ImageFile& file, std::size_t size);

// An EXIF block of one entry, in big-endian order.
std::vector<std::uint8_t> exif_block(int orientation);

}  // namespace lockstep
