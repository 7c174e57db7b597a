// Plans which pixels of a file are decoded, and at which size, so that only
// those are made that reach the result of the operations.
//
// A crop that comes first is the decoded region. A resize with a crop after it
// computes only what the crop leaves, and needs only the rows and columns that
// this is made of. Neither changes a bit. Where `scaling` permits it, an image
// that becomes much smaller is decoded at a part of its size; its pixels then
// differ by what docs/results/data.md states.
//
// Threads: any thread.
#pragma once

#include <vector>

#include "lockstep/data/image_folder.h"
#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// What to decode: `region` of the image at 1 / `denominator` of its size.
struct DecodePlan {
  ImageRegion region{};
  int denominator = 1;
};

// For an image of `size` and operations of draw_all(). Removes those that
// decoding carries out.
DecodePlan plan_decoding(const ImageSize& size, DecodeScaling scaling,
                         std::vector<Operation>& operations);

}  // namespace lockstep::transforms
