// Plans which pixels of a file are decoded, and at which size, so that only
// those are made that reach the result of the operations.
//
// A crop that comes first is the decoded region. Of a resize with a crop after
// it only what the crop leaves is computed, from the rows and columns that it
// is made of. Neither changes a bit. Where `scaling` permits it, an image that
// becomes much smaller is decoded at a part of its size, which costs a few bits
// of accuracy.
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

// For an image of `size`. Replaces the operations that decoding carries out.
DecodePlan plan_decoding(const ImageSize& size, DecodeScaling scaling,
                         std::vector<Operation>& operations);

}  // namespace lockstep::transforms
