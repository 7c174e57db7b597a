// Carries out operations on one image after the other, in order: the form of
// Compose for a loader's worker.
//
// Threads: a Pipeline belongs to one thread; it keeps its memory.
// Errors:  InvalidArgument for a normalisation of another number of channels.
#pragma once

#include <span>
#include <vector>

#include "src/data/transform/blur.h"
#include "src/data/transform/operation.h"
#include "src/data/transform/resize.h"

namespace lockstep::transforms {

class Pipeline {
 public:
  // Applies the operations before ToFloat, and returns how many they are.
  std::size_t apply_to_pixels(std::span<const Operation> operations,
                              Image& image);

 private:
  Image other_{};  // each operation writes to it what replaces the image
  Resizer resizer_{};
  Blurrer blurrer_{};
};

// Applies the operations from ToFloat on. `numbers` are channels x height x
// width of `image`.
void apply_to_numbers(std::span<const Operation> operations, const Image& image,
                      std::span<float> numbers);

}  // namespace lockstep::transforms
