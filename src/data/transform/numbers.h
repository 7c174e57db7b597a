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

// The number that stands for each of the 256 values, in each channel: what each
// operation makes of a value is computed once.
using NumberTables = std::array<std::array<float, 256>, 3>;

// The value divided by 255, as float32.
void apply(const ToFloat& to_float, NumberTables& tables);
void apply(const NormalizeBy& by, NumberTables& tables);

// Writes the number of each pixel.
void look_up(const NumberTables& tables, const Image& image,
             std::span<float> numbers);

// `numbers` are those of an image of `size`.
void apply(const NormalizeBy& by, const ImageSize& size,
           std::span<float> numbers);
void apply(const Erase& erase, const ImageSize& size, std::span<float> numbers);

}  // namespace lockstep::transforms
