// Maps an image by an affine transform as PIL's Image.transform() does.
//
// Nearest pixels are found in fixed-point numbers of 16 binary places, and in
// float64 where the image is too large for these or its rows stay rows, each as
// PIL does it, so that the same pixel is found. kBilinear and kBicubic weigh 4
// and 16 neighbours in float64; the outermost pixels stand for those beyond.
//
// Threads: any thread.
// Source:  Pillow 13.
#pragma once

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// Writes the result to `output`, which is another image than `input`.
void apply(const MapAffine& map, const Image& input, Image& output);

}  // namespace lockstep::transforms
