// Draws the random numbers of a transform for one image, with the distributions
// of torchvision.
//
// Threads: any thread.
// Errors:  InvalidArgument for an image that is too small for the transform.
// Source:  the get_params() of torchvision 0.28's transforms, and the geometry
//          of its transforms on PIL images.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "src/data/sample_random.h"
#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// Appends what `transform` does to an image of `size`, and returns the size
// that the image has after it.
ImageSize draw(const Transform& transform, const ImageSize& size,
               SampleRandom& random, std::vector<Operation>& operations);

// Replaces `operations` by what all `transforms` do to image `key`, of `size`.
// Exactly one of them is ToFloat, whether or not ToTensor is among the
// transforms.
void draw_all(std::span<const Transform> transforms, ImageSize size,
              const SampleKey& key, std::vector<Operation>& operations);

// The size that every image has after `transform`, if all have `size` before it
// (nothing: they differ).
std::optional<ImageSize> size_after(const Transform& transform,
                                    const std::optional<ImageSize>& size);

NormalizeBy normalize_by(const Normalize& normalize);

// The range that a number stands for; it lies around `neutral`.
Range range_of(const NumberOrRange& value, double neutral);

// Both sides of an output.
ImageSize sides_of(const Sides& sides);

}  // namespace lockstep::transforms
