// What ImageReader asks of the decoder of one format.
//
// Threads: a decoder belongs to one thread.
// Errors:  InvalidArgument as decode_image(). After an error a decoder may open
//          another file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "src/data/image/image_reader.h"

namespace lockstep {

// What the header of a file says of the image as it is stored.
struct StoredImage {
  ImageSize size{};
  int orientation = 1;  // of its EXIF block
};

class ImageDecoder {
 public:
  virtual ~ImageDecoder() = default;

  // Reads the header, and checks its size and its form. `contents` must live
  // until the next open().
  virtual StoredImage open(std::span<const std::byte> contents,
                           std::string_view name,
                           const DecodeOptions& options) = 0;

  // Whether read() takes a `denominator` other than 1.
  virtual bool scales() const = 0;

  // Decodes `region` of the stored image at 1 / `denominator` of its size.
  // Each open() allows one read().
  virtual void read(const ImageRegion& region, int denominator,
                    Image& image) = 0;
};

std::unique_ptr<ImageDecoder> make_jpeg_decoder();
std::unique_ptr<ImageDecoder> make_png_decoder();

}  // namespace lockstep
