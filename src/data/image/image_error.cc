#include "src/data/image/image_error.h"

#include <fmt/format.h>

namespace lockstep {

InvalidArgument unsupported_image(std::string_view name,
                                  std::string_view form) {
  return InvalidArgument(fmt::format(
      "cannot read {}: {}\n"
      "  next: convert it to a JPEG or PNG file of 8-bit RGB or grey with an "
      "image program, or leave it out",
      name, form));
}

void check_pixel_count(std::string_view name, const ImageSize& size,
                       std::int64_t most) {
  if (size.width == 0 || size.height <= most / size.width) return;
  throw InvalidArgument(fmt::format(
      "cannot read {}: its header states too large an image\n"
      "  expected: at most {} pixels\n"
      "  found:    {} x {} (width x height)\n"
      "  next:     make the image smaller, or leave it out; a program of your "
      "own may raise DecodeOptions::max_pixels",
      name, most, size.width, size.height));
}

}  // namespace lockstep
