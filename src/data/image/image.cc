#include <limits>

#include "lockstep/data/image_dataset.h"
#include "src/data/image/image_reader.h"

namespace lockstep {

ImageSize image_size(std::span<const std::byte> contents,
                     std::string_view name) {
  return ImageReader().open(
      contents, name, {.max_pixels = std::numeric_limits<std::int64_t>::max()});
}

Image decode_image(std::span<const std::byte> contents, std::string_view name,
                   const DecodeOptions& options) {
  ImageReader reader;
  reader.open(contents, name, options);
  Image image;
  reader.read(image);
  return image;
}

}  // namespace lockstep
