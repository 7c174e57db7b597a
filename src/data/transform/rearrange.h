// The operations that move pixels and compute none: pad, crop, mirror, turn.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <span>

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// Each writes the result to `output`, which is another image than `input`; its
// memory is used again.
void apply(const Pad& pad, const Image& input, Image& output);
void apply(const Crop& crop, const Image& input, Image& output);
void apply(const Mirror& mirror, const Image& input, Image& output);
void apply(const Turn& turn, const Image& input, Image& output);

// Writes one channel after the other.
void copy_planes(const Image& image, std::span<std::uint8_t> planes);

// Gives `image` this form; its pixels are undefined.
void reshape(Image& image, const ImageSize& size, std::int64_t channels);

}  // namespace lockstep::transforms
