#include "src/data/transform/color.h"

#include <cmath>
#include <numeric>

#include "src/data/transform/pixel_kernels.h"

namespace lockstep::transforms {
namespace {

constexpr std::int64_t kRgb = 3;

std::size_t pixels_of(const Image& image) {
  return image.pixels.size() / static_cast<std::size_t>(image.channels);
}

// The mean of the grey values, rounded.
std::uint8_t mean_gray(const Image& image) {
  std::uint64_t sum = 0;
  if (image.channels == kRgb)
    sum = pixel_kernels().sum_of_gray(image.pixels.data(), pixels_of(image));
  else
    sum = std::accumulate(image.pixels.begin(), image.pixels.end(), sum);
  return static_cast<std::uint8_t>(std::floor(
      static_cast<double>(sum) / static_cast<double>(pixels_of(image)) + 0.5));
}

}  // namespace

void apply(const Adjust& adjust, Image& image) {
  const PixelKernels& kernels = pixel_kernels();
  std::uint8_t* const pixels = image.pixels.data();
  switch (adjust.property) {
    case ColorProperty::kBrightness:
      return kernels.blend(pixels, image.pixels.size(), 0, adjust.factor);
    case ColorProperty::kContrast:
      return kernels.blend(pixels, image.pixels.size(), mean_gray(image),
                           adjust.factor);
    case ColorProperty::kSaturation:
      if (image.channels == kRgb)
        kernels.blend_with_gray(pixels, pixels_of(image), adjust.factor);
  }
}

void apply(const ShiftHue& shift, Image& image) {
  if (image.channels == kRgb)
    pixel_kernels().shift_hue(image.pixels.data(), pixels_of(image),
                              shift.steps);
}

void apply(const ToGray&, Image& image) {
  if (image.channels == kRgb)
    pixel_kernels().to_gray(image.pixels.data(), pixels_of(image));
}

}  // namespace lockstep::transforms
