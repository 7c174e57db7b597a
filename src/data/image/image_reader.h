// Decodes many images, one after the other, into memory that is used again: the
// form of decode_image() for a loader's worker.
//
//   ImageReader reader;
//   for (each file) {
//     const ImageSize size = reader.open(contents, name, options);
//     reader.read(region_that_a_crop_needs, image);
//   }
//
// A reader decodes a region at the cost of the region where the format allows
// it: JPEG skips the rows above and below, and the inverse transform of the
// columns beside it; it can also decode at 1/2, 1/4 and 1/8 of the size. PNG
// decodes each row to the region's last.
//
// Threads: a reader belongs to one thread.
// Errors:  as decode_image(). After an error the reader may open another file.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

class ImageDecoder;

struct ImageRegion {
  std::int64_t top = 0;
  std::int64_t left = 0;
  ImageSize size{};
};

// The size of an image that is decoded at 1 / `denominator` of `size`.
ImageSize scaled_size(const ImageSize& size, int denominator);

class ImageReader {
 public:
  ImageReader();
  ~ImageReader();
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;

  // Reads the header, and returns the size of the image as read() returns it:
  // after the orientation, where `options` say to apply it. `contents` must
  // live until the next open().
  ImageSize open(std::span<const std::byte> contents, std::string_view name,
                 const DecodeOptions& options = {});

  // Decodes the whole image; the pixels are those of decode_image().
  void read(Image& image);

  // Decodes `region`, within the size that open() returned; bit for bit the
  // pixels that read(image) has there. Each open() allows one read().
  void read(const ImageRegion& region, Image& image);

  // Whether the open file can be decoded at a part of its size: a JPEG without
  // an orientation to apply.
  bool scales() const;

  // Decodes `region` of the image at 1 / `denominator` of its size, rounded up,
  // with JPEG's scaled inverse transform. `denominator` is 1, 2, 4 or 8; 1
  // where scales() is false.
  void read(const ImageRegion& region, int denominator, Image& image);

 private:
  std::unique_ptr<ImageDecoder> jpeg_;
  std::unique_ptr<ImageDecoder> png_;
  ImageDecoder* decoder_ = nullptr;  // of the open file, until it is read
  ImageSize stored_size_{};
  int orientation_ = 1;  // that is applied: EXIF's tag 0x0112, 1 to 8
  Image turned_{};       // before the orientation is applied
};

}  // namespace lockstep
