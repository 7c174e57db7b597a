#include "src/data/transform/blur.h"

#include <algorithm>
#include <cmath>

namespace lockstep::transforms {
namespace {

void find_kernel(std::int64_t taps, double sigma, std::vector<float>& kernel) {
  kernel.resize(static_cast<std::size_t>(taps));
  const float half = static_cast<float>(taps - 1) * 0.5f;
  float sum = 0;
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    const float x = (static_cast<float>(i) - half) / static_cast<float>(sigma);
    kernel[i] = std::exp(-0.5f * x * x);
    sum += kernel[i];
  }
  for (float& weight : kernel) weight /= sum;
}

// The pixel that stands for `position`, at most length - 1 beyond either end.
std::int64_t reflected(std::int64_t position, std::int64_t length) {
  if (position < 0) return -position;
  if (position >= length) return 2 * (length - 1) - position;
  return position;
}

}  // namespace

void Blurrer::blur_rows(const Blur& blur, const Image& image) {
  find_kernel(blur.kernel.width, blur.sigma, kernel_);
  between_.resize(image.pixels.size());
  const auto [height, width] = image.size;
  float* to = between_.data();
  for (std::int64_t y = 0; y < height; ++y) {
    const std::uint8_t* row = image.pixels.data() + y * width * image.channels;
    for (std::int64_t x = 0; x < width; ++x)
      for (std::int64_t channel = 0; channel < image.channels; ++channel) {
        float sum = 0;
        std::int64_t from = x - blur.kernel.width / 2;
        for (const float weight : kernel_)
          sum += weight *
                 static_cast<float>(
                     row[reflected(from++, width) * image.channels + channel]);
        *to++ = sum;
      }
  }
}

void Blurrer::blur_columns(const Blur& blur, Image& image) {
  find_kernel(blur.kernel.height, blur.sigma, kernel_);
  const std::int64_t height = image.size.height;
  const std::int64_t row = image.size.width * image.channels;
  std::uint8_t* to = image.pixels.data();
  for (std::int64_t y = 0; y < height; ++y)
    for (std::int64_t x = 0; x < row; ++x) {
      float sum = 0;
      std::int64_t from = y - blur.kernel.height / 2;
      for (const float weight : kernel_)
        sum += weight * between_[static_cast<std::size_t>(
                            reflected(from++, height) * row + x)];
      *to++ = static_cast<std::uint8_t>(
          std::clamp(std::nearbyint(sum), 0.0f, 255.0f));
    }
}

void Blurrer::apply(const Blur& blur, Image& image) {
  blur_rows(blur, image);
  blur_columns(blur, image);
}

}  // namespace lockstep::transforms
