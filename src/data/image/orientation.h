// Turns and mirrors an image as its EXIF orientation says.
//
// The orientation, 1 to 8, says which row and column of the image as it is
// shown the first row and column of the stored pixels are. 5 to 8 exchange
// height and width.
//
// Threads: any thread.
#pragma once

#include "src/data/image/image_reader.h"

namespace lockstep {

// The size of a stored image of `stored` as it is shown.
ImageSize shown_size(const ImageSize& stored, int orientation);

// Where the pixels of `shown`, a region of the image as it is shown, are stored
// in an image of size `stored`.
ImageRegion stored_region(const ImageRegion& shown, const ImageSize& stored,
                          int orientation);

// Writes `stored`, as it is shown, to `shown`.
void turn(const Image& stored, int orientation, Image& shown);

}  // namespace lockstep
