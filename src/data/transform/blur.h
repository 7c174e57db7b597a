// Blurs images as torchvision's gaussian_blur() does: a normal distribution's
// density at whole distances, scaled to the sum 1, over the image continued by
// its mirror image.
//
// The sum over the kernel's area is one along the rows and one along the
// columns, in float32: kernel height + width taps per pixel and channel.
//
// Threads: a Blurrer belongs to one thread; it keeps its memory.
#pragma once

#include <vector>

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

class Blurrer {
 public:
  void apply(const Blur& blur, Image& image);

 private:
  void blur_rows(const Blur& blur, const Image& image);
  void blur_columns(const Blur& blur, Image& image);
  // The sums of `rows_` by the weights of `kernel_`.
  void sum(std::size_t count, float* to) const;

  std::vector<float> kernel_{};
  std::vector<float> between_{};  // after the rows
  std::vector<float> row_{};
  std::vector<const float*> rows_{};  // one for each weight
};

}  // namespace lockstep::transforms
