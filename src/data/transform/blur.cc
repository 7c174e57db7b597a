#include "src/data/transform/blur.h"

#include <cmath>

#include "src/data/transform/pixel_kernels.h"

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

void Blurrer::sum(std::size_t count, float* to) const {
  pixel_kernels().sum_floats({.rows = rows_.data(),
                              .weights = kernel_.data(),
                              .rows_count = kernel_.size(),
                              .count = count,
                              .to = to});
}

void Blurrer::blur_rows(const Blur& blur, const Image& image) {
  find_kernel(blur.kernel.width, blur.sigma, kernel_);
  between_.resize(image.pixels.size());
  const auto [height, width] = image.size;
  const std::int64_t channels = image.channels;
  const std::int64_t around = blur.kernel.width / 2;
  row_.resize(static_cast<std::size_t>((width + 2 * around) * channels));
  rows_.clear();
  for (std::size_t tap = 0; tap < kernel_.size(); ++tap)
    rows_.push_back(row_.data() + tap * static_cast<std::size_t>(channels));
  for (std::int64_t y = 0; y < height; ++y) {
    const std::uint8_t* from = image.pixels.data() + y * width * channels;
    float* to = row_.data();
    for (std::int64_t x = -around; x < width + around; ++x)
      for (std::int64_t channel = 0; channel < channels; ++channel)
        *to++ =
            static_cast<float>(from[reflected(x, width) * channels + channel]);
    sum(static_cast<std::size_t>(width * channels),
        between_.data() + y * width * channels);
  }
}

void Blurrer::blur_columns(const Blur& blur, Image& image) {
  find_kernel(blur.kernel.height, blur.sigma, kernel_);
  const std::int64_t height = image.size.height;
  const std::int64_t around = blur.kernel.height / 2;
  const std::int64_t row = image.size.width * image.channels;
  row_.resize(static_cast<std::size_t>(row));
  for (std::int64_t y = 0; y < height; ++y) {
    rows_.clear();
    for (std::int64_t from = y - around; from <= y + around; ++from)
      rows_.push_back(between_.data() + reflected(from, height) * row);
    sum(row_.size(), row_.data());
    pixel_kernels().round_floats(row_.data(), row_.size(),
                                 image.pixels.data() + y * row);
  }
}

void Blurrer::apply(const Blur& blur, Image& image) {
  blur_rows(blur, image);
  blur_columns(blur, image);
}

}  // namespace lockstep::transforms
