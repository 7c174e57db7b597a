// Whether a transform's arguments, and the order of transforms, have a meaning.
//
// Threads: any thread.
// Errors:  InvalidArgument; the message names the transform and the argument.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/data/transforms.h"

namespace lockstep::transforms {

// The longest side to which a transform makes an image, as of a JPEG file.
inline constexpr std::int64_t kMostPixelsOfASide = 65'535;

// torchvision's name in the form of a text: "random_resized_crop".
std::string_view name_of(const Transform& transform);

// Whether the transform works on floats.
bool takes_numbers(const Transform& transform);

// Throws for the first argument that is out of range.
void check(const Transform& transform);

// Throws where a transform of pixels comes after one of floats.
void check_order(std::span<const Transform> transforms);

}  // namespace lockstep::transforms
