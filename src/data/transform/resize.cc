#include "src/data/transform/resize.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "src/data/transform/rearrange.h"

namespace lockstep::transforms {
namespace {

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

// Each output pixel is the input pixel under its centre. PIL adds up the steps,
// and so must we to round as it does.
void find_nearest(std::int64_t in, std::int64_t out,
                  std::vector<std::int64_t>& sources) {
  const double step = static_cast<double>(in) / static_cast<double>(out);
  sources.resize(static_cast<std::size_t>(out));
  double at = step * 0.5;
  for (std::int64_t& source : sources) {
    source = std::min(static_cast<std::int64_t>(at), in - 1);
    at += step;
  }
}

template <std::size_t kChannels>
std::uint8_t* pick_columns(std::span<const std::int64_t> columns,
                           const std::uint8_t* row, std::uint8_t* to) {
  for (const std::int64_t column : columns) {
    std::memcpy(to, row + column * std::int64_t{kChannels}, kChannels);
    to += kChannels;
  }
  return to;
}

}  // namespace

void Resizer::pick_nearest(const ImageSize& size, const Image& input,
                           Image& output) {
  reshape(output, size, input.channels);
  find_nearest(input.size.height, size.height, nearest_rows_);
  find_nearest(input.size.width, size.width, nearest_columns_);
  std::uint8_t* to = output.pixels.data();
  for (const std::int64_t row : nearest_rows_) {
    const std::uint8_t* from =
        input.pixels.data() + row * input.size.width * input.channels;
    to = (input.channels == 3 ? pick_columns<3>
                              : pick_columns<1>)(nearest_columns_, from, to);
  }
}

void Resizer::find_weights(std::int64_t in, std::int64_t out,
                           Interpolation interpolation, Weights& weights) {
  const bool is_cubic = interpolation == Interpolation::kBicubic;
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  const double shrink = std::max(1.0, scale);
  const double support = (is_cubic ? 2.0 : 1.0) * shrink;
  weights.taps = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  weights.spans.resize(static_cast<std::size_t>(out));
  weights.values.assign(static_cast<std::size_t>(out * weights.taps), 0);
  weights.exact.resize(static_cast<std::size_t>(weights.taps));
  for (std::int64_t i = 0; i < out; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const std::int64_t first = std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::floor(center - support + 0.5)));
    const std::int64_t end = std::min(
        in, static_cast<std::int64_t>(std::floor(center + support + 0.5)));
    double sum = 0;
    for (std::int64_t x = first; x < end; ++x) {
      const double distance =
          (static_cast<double>(x) - center + 0.5) * (1.0 / shrink);
      const double weight = is_cubic ? cubic(distance) : triangle(distance);
      weights.exact[static_cast<std::size_t>(x - first)] = weight;
      sum += weight;
    }
    std::int32_t* values = weights.values.data() + i * weights.taps;
    for (std::int64_t x = 0; x < end - first; ++x) {
      double weight = weights.exact[static_cast<std::size_t>(x)];
      if (sum != 0) weight /= sum;
      values[x] = static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) +
                                            weight * (1 << kWeightPlaces));
    }
    weights.spans[static_cast<std::size_t>(i)] = {first, end - first};
  }
}

void Resizer::group_weights(std::int64_t channels) {
  const std::int64_t pixels = WeightedRows::kLanes / channels;
  groups_ = (weights_.taps + pixels - 1) / pixels;
  grouped_.assign(weights_.spans.size() *
                      static_cast<std::size_t>(groups_ * WeightedRows::kLanes),
                  0);
  std::int32_t* to = grouped_.data();
  const std::int32_t* from = weights_.values.data();
  for (const WeightedSpan& span : weights_.spans) {
    for (std::int64_t tap = 0; tap < span.count; ++tap)
      std::fill_n(
          to + tap / pixels * WeightedRows::kLanes + tap % pixels * channels,
          channels, from[tap]);
    to += groups_ * WeightedRows::kLanes;
    from += weights_.taps;
  }
}

void Resizer::resize_rows(const ResizeTo& resize, const Image& input,
                          Image& output) {
  const std::int64_t width = resize.size.width;
  const std::int64_t channels = input.channels;
  find_weights(input.size.width, width, resize.interpolation, weights_);
  group_weights(channels);
  reshape(output, {input.size.height, width}, channels);
  // Beyond the end of a copy of the last rows the kernel may read.
  const std::int64_t row = input.size.width * channels;
  const std::int64_t last =
      std::min(input.size.height, (WeightedRows::kLanes + row - 1) / row);
  last_rows_.assign(input.pixels.end() - last * row, input.pixels.end());
  last_rows_.resize(
      static_cast<std::size_t>(last * row + WeightedRows::kLanes));
  WeightedRows rows{.from = input.pixels.data(),
                    .to = output.pixels.data(),
                    .rows = input.size.height - last,
                    .channels = channels,
                    .from_width = input.size.width,
                    .to_width = width,
                    .spans = weights_.spans.data(),
                    .weights = grouped_.data(),
                    .groups = groups_};
  pixel_kernels().sum_rows(rows);
  rows.from = last_rows_.data();
  rows.to += rows.rows * width * channels;
  rows.rows = last;
  pixel_kernels().sum_rows(rows);
}

void Resizer::resize_columns(const ResizeTo& resize, const Image& input,
                             Image& output) {
  const std::int64_t height = resize.size.height;
  find_weights(input.size.height, height, resize.interpolation, weights_);
  reshape(output, {height, input.size.width}, input.channels);
  const std::int64_t row = input.size.width * input.channels;
  for (std::int64_t y = 0; y < height; ++y) {
    const auto [first, count] = weights_.spans[static_cast<std::size_t>(y)];
    pixel_kernels().sum_columns(
        {.from = input.pixels.data() + first * row,
         .to = output.pixels.data() + y * row,
         .bytes = row,
         .weights = weights_.values.data() + y * weights_.taps,
         .count = count});
  }
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
