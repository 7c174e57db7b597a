// The operations on floats: what makes them of pixels, and what changes them.
//
// Numbers are channels x height x width.
//
// Threads: any thread.
// Source:  torchvision 0.28's to_tensor(), normalize() and erase().
#pragma once

#include <span>
#include <vector>

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// Each pixel divided by 255, as float32.
void apply(const ToFloat& to_float, const Image& image,
           std::span<float> numbers);

// `numbers` are those of an image of `size`.
void apply(const NormalizeBy& by, const ImageSize& size,
           std::span<float> numbers);
void apply(const Erase& erase, const ImageSize& size, std::span<float> numbers);

}  // namespace lockstep::transforms
