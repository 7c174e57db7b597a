// An image of 8-bit pixels, and the decoder of JPEG and PNG files.
//
//   Image image = decode_image(read_data_file(path), path);
//
// Threads: functions may be called from any thread; an Image is a value.
// Errors:  InvalidArgument for contents that are no JPEG or PNG file, that are
//          damaged or truncated, that exceed the limits, and for a form that
//          is not converted (16 bits per sample); the message names the file,
//          the problem and the next step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

struct Image {
  ImageSize size{};
  std::int64_t channels = 3;  // 1: grey; 3: red, green, blue
  // height x width x channels: the channels of a pixel lie side by side.
  std::vector<std::uint8_t> pixels{};
};

enum class ImageColor { kRgb, kGray };

// Whether the orientation that a camera wrote into a file's EXIF block is
// applied: torchvision's loaders ignore it.
enum class ExifOrientation { kIgnore, kApply };

struct DecodeOptions {
  // Grey becomes RGB of three equal channels; RGB becomes grey as in PIL,
  // (19595 R + 38470 G + 7471 B + 32768) >> 16; an alpha channel is dropped, as
  // PIL's convert("RGB") does. CMYK of a JPEG file becomes RGB as it does
  // there, and grey of that.
  ImageColor color = ImageColor::kRgb;
  ExifOrientation orientation = ExifOrientation::kIgnore;
  // An image of more pixels is refused before memory is allocated for it. The
  // default is PIL's: a file of a few kB can state sizes that fill any memory.
  std::int64_t max_pixels = 89'478'485;
};

// The size that the header states, before an orientation is applied. `name`
// names the contents in messages.
ImageSize image_size(std::span<const std::byte> contents,
                     std::string_view name);

// Decodes a whole JPEG or PNG file; its first bytes say which of the two it is.
Image decode_image(std::span<const std::byte> contents, std::string_view name,
                   const DecodeOptions& options = {});

}  // namespace lockstep
