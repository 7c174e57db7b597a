// Constants that update_kernels.cc computes once per step for the kernels that
// update_kernels.inc generates for each instruction set.
#pragma once

#include <cstddef>

#include "src/planning/update_kernels.h"

namespace lockstep {

// d = gradient x scale + decay x value
// buffer = buffer x kept + d x taken
// value += negative_rate x (d, or buffer, or d + momentum x buffer)
struct SgdNumbers {
  enum class Direction { kGradient, kBuffer, kNesterov };
  Direction direction = Direction::kGradient;
  double scale = 1;
  double decay = 0;
  double kept = 0;
  double taken = 1;
  double momentum = 0;
  double negative_rate = 0;
};

// d = gradient x scale + decay x value
// average = average x kept1 + d x taken1
// square = square x kept2 + taken2 x d x d
// value = value x shrink
//         + negative_rate x average / (sqrt(square) / root + eps)
struct AdamNumbers {
  double scale = 1;
  double decay = 0;
  double kept1 = 0, taken1 = 0;
  double kept2 = 0, taken2 = 0;
  double shrink = 1;
  double root = 1;
  double eps = 0;
  double negative_rate = 0;
};

struct UpdateKernels {
  void (*sgd)(const SgdNumbers& numbers, const UpdatePiece& piece);
  void (*adam)(const AdamNumbers& numbers, const UpdatePiece& piece);
  double (*sum_of_squares)(const std::byte* elements, std::size_t count,
                           DataType type);
};

}  // namespace lockstep
