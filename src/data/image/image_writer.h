// Encodes an image as a JPEG or PNG file: what decode_image() reads.
//
// Threads: any thread.
// Errors:  InvalidArgument for an image without pixels, whose pixels do not fit
//          its size, or that is too large for the format; std::bad_alloc.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// A baseline JPEG file. `quality` is libjpeg's, 1 to 100. Colors have half of
// the resolution on both sides (4:2:0), as is usual.
std::vector<std::byte> write_jpeg(const Image& image, int quality = 90);

// A PNG file of 8 bits per sample.
std::vector<std::byte> write_png(const Image& image);

}  // namespace lockstep
