#include "src/data/transform/resize.h"

#include <algorithm>
#include <cmath>

#include "src/data/transform/rearrange.h"

namespace lockstep::transforms {
namespace {

constexpr int kPlaces = 22;  // 32 bits, less 8 of the pixel and 2 of the sum
constexpr std::int32_t kHalf = 1 << (kPlaces - 1);

struct Filter {
  double (*weight)(double distance);
  double support;  // in input pixels, where the image grows
};

double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }

// Keys, "Cubic convolution interpolation for digital image processing", 1981,
// with a = -1/2.
double cubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  if (x < 2.0) return (((x - 5) * x + 8) * x - 4) * kA;
  return 0.0;
}

std::uint8_t to_8_bits(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kPlaces, 0, 255));
}

// Each output pixel is the input pixel under its centre. PIL adds up the steps,
// and so must we to round as it does.
std::vector<std::int64_t> nearest(std::int64_t in, std::int64_t out) {
  const double step = static_cast<double>(in) / static_cast<double>(out);
  std::vector<std::int64_t> sources(static_cast<std::size_t>(out));
  double at = step * 0.5;
  for (std::int64_t& source : sources) {
    source = std::min(static_cast<std::int64_t>(at), in - 1);
    at += step;
  }
  return sources;
}

void pick_nearest(const ImageSize& size, const Image& input, Image& output) {
  reshape(output, size, input.channels);
  const auto rows = nearest(input.size.height, size.height);
  const auto columns = nearest(input.size.width, size.width);
  std::uint8_t* to = output.pixels.data();
  for (const std::int64_t row : rows) {
    const std::uint8_t* from =
        input.pixels.data() + row * input.size.width * input.channels;
    for (const std::int64_t column : columns)
      to = std::copy_n(from + column * input.channels, input.channels, to);
  }
}

}  // namespace

void Resizer::find_weights(std::int64_t in, std::int64_t out,
                           Interpolation interpolation, Weights& weights) {
  const Filter filter = interpolation == Interpolation::kBicubic
                            ? Filter{cubic, 2.0}
                            : Filter{triangle, 1.0};
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double shrink = std::max(1.0, scale);
  const double support = filter.support * shrink;
  weights.taps = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  weights.spans.resize(static_cast<std::size_t>(out));
  weights.values.assign(static_cast<std::size_t>(out * weights.taps), 0);
  std::vector<double> exact(static_cast<std::size_t>(weights.taps));
  for (std::int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const std::int64_t first = std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::floor(center - support + 0.5)));
    const std::int64_t end = std::min(
        in, static_cast<std::int64_t>(std::floor(center + support + 0.5)));
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      const double weight = filter.weight(
          (static_cast<double>(x) - center + 0.5) * (1.0 / shrink));
      exact[static_cast<std::size_t>(x - first)] = weight;
      sum += weight;
    }
    std::int32_t* values = weights.values.data() + i * weights.taps;
    for (std::int64_t x = 0; x < end - first; ++x) {
      double weight = exact[static_cast<std::size_t>(x)];
      if (sum != 0) weight /= sum;
      values[x] = static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) +
                                            weight * (1 << kPlaces));
    }
    weights.spans[static_cast<std::size_t>(i)] = {first, end - first};
  }
}

void Resizer::sum_rows(const Weights& weights, const Image& input,
                       Image& output) {
  const std::int64_t channels = input.channels;
  std::uint8_t* to = output.pixels.data();
  for (std::int64_t y = 0; y < input.size.height; ++y) {
    const std::uint8_t* row =
        input.pixels.data() + y * input.size.width * channels;
    for (std::int64_t x = 0; x < output.size.width; ++x) {
      const auto [first, count] = weights.spans[static_cast<std::size_t>(x)];
      const std::int32_t* weight = weights.values.data() + x * weights.taps;
      const std::uint8_t* from = row + first * channels;
      for (std::int64_t channel = 0; channel < channels; ++channel) {
        std::int32_t sum = kHalf;
        for (std::int64_t i = 0; i < count; ++i)
          sum += weight[i] * from[i * channels + channel];
        *to++ = to_8_bits(sum);
      }
    }
  }
}

void Resizer::sum_columns(const Weights& weights, const Image& input,
                          Image& output) {
  const std::int64_t row = input.size.width * input.channels;
  for (std::int64_t y = 0; y < output.size.height; ++y) {
    const auto [first, count] = weights.spans[static_cast<std::size_t>(y)];
    const std::int32_t* weight = weights.values.data() + y * weights.taps;
    const std::uint8_t* from = input.pixels.data() + first * row;
    std::uint8_t* to = output.pixels.data() + y * row;
    for (std::int64_t x = 0; x < row; ++x) {
      std::int32_t sum = kHalf;
      for (std::int64_t i = 0; i < count; ++i)
        sum += weight[i] * from[i * row + x];
      to[x] = to_8_bits(sum);
    }
  }
}

void Resizer::resize_rows(const ResizeTo& resize, const Image& input,
                          Image& output) {
  const std::int64_t width = resize.size.width;
  find_weights(input.size.width, width, resize.interpolation, weights_);
  reshape(output, {input.size.height, width}, input.channels);
  sum_rows(weights_, input, output);
}

void Resizer::resize_columns(const ResizeTo& resize, const Image& input,
                             Image& output) {
  const std::int64_t height = resize.size.height;
  find_weights(input.size.height, height, resize.interpolation, weights_);
  reshape(output, {height, input.size.width}, input.channels);
  sum_columns(weights_, input, output);
}

void Resizer::apply(const ResizeTo& resize, const Image& input, Image& output) {
  const std::int64_t rows_less = input.size.height - resize.size.height;
  const std::int64_t columns_less = input.size.width - resize.size.width;
  if (resize.interpolation == Interpolation::kNearest) {
    pick_nearest(resize.size, input, output);
  } else if (rows_less == 0 && columns_less == 0) {
    output = input;
  } else if (rows_less == 0) {
    resize_rows(resize, input, output);
  } else if (columns_less == 0) {
    resize_columns(resize, input, output);
  } else if (rows_less > 0 && rows_less > 2 * columns_less) {
    // Pillow 13 chose this order for speed; earlier ones never did.
    resize_columns(resize, input, between_);
    resize_rows(resize, between_, output);
  } else {
    resize_rows(resize, input, between_);
    resize_columns(resize, between_, output);
  }
}

}  // namespace lockstep::transforms
