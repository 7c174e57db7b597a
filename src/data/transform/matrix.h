// The matrices by which rotations and affine transforms find the input of each
// output pixel.
//
// Threads: any thread.
// Source:  PIL's Image.rotate(), and torchvision 0.28's affine().
#pragma once

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

using Matrix = std::array<double, 6>;

// That of a rotation; with rotation.expand, `size` becomes the output's.
Matrix rotation_matrix(double degrees, const RandomRotation& rotation,
                       ImageSize& size);

// What an affine transform has drawn: degrees, pixels, a factor, degrees.
struct AffineParameters {
  double angle = 0;
  std::array<double, 2> translate{};
  double scale = 1;
  std::array<double, 2> shear{};
};

// The inverse of: shift by the translation and the centre, rotate, scale,
// shear, shift back.
Matrix affine_matrix(const AffineParameters& drawn, const Center& center);

}  // namespace lockstep::transforms
