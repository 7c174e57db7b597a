// Reads how a PNG file is divided into chunks, before libpng decodes it.
//
// A chunk is its length, a type of four letters, the data and a checksum. The
// walk over the lengths finds a file that is cut in its pixels without decoding
// it, so that a file is refused whatever region of it a reader wants. A file
// that is cut behind a chunk of pixels may have all of them.
//
// Threads: any thread.
// Errors:  InvalidArgument for a file that is cut before or in a chunk of
//          pixels, and for one that does not begin with its header.
// Source:  https://www.w3.org/TR/png-3/#5DataRep
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

struct PngHeader {
  ImageSize size{};
  int bits_per_sample = 0;
  std::span<const std::byte> exif{};  // empty where there is no such chunk
  bool has_end =
      true;  // otherwise only decoding tells whether rows are missing
};

// `contents` begin with the eight bytes of every PNG file.
PngHeader read_png_header(std::span<const std::byte> contents,
                          std::string_view name);

// Whether each chunk of pixels has the checksum of its data, in a file whose
// header was read. Costs a read of the file, a small part of a decode.
bool pixels_have_right_checksums(std::span<const std::byte> contents);

}  // namespace lockstep
