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

ResizeSide whole_side(std::int64_t in, std::int64_t out) {
  return {.end = static_cast<double>(in), .out = out, .count = out};
}

double scale_of(const ResizeSide& side) {
  return (side.end - side.begin) / static_cast<double>(side.out);
}

// Whether each output pixel is an input pixel.
bool is_unchanged(const ResizeSide& side) {
  return side.end - side.begin == static_cast<double>(side.out);
}

// The reach of an output pixel's weights to either side, in input pixels.
double support_of(const ResizeSide& side, Interpolation interpolation) {
  const double shrink = std::max(1.0, scale_of(side));
  return (interpolation == Interpolation::kBicubic ? 2.0 : 1.0) * shrink;
}

double center_of(const ResizeSide& side, std::int64_t output) {
  return side.begin + (static_cast<double>(output) + 0.5) * scale_of(side);
}

// How much of an input pixel lies in what the whole output covers: all, but for
// those at the sides of a scaled image.
double covered_part(const ResizeSide& side, std::int64_t input) {
  const auto x = static_cast<double>(input);
  return std::min(x + 1, side.end) - std::max(x, side.begin);
}

// The pixels of `input` of which output pixel `output` is a sum.
PixelSpan summed_by(const ResizeSide& side, std::int64_t output, double support,
                    const PixelSpan& input) {
  const double center = center_of(side, output);
  const std::int64_t first =
      std::max(input.first,
               static_cast<std::int64_t>(std::floor(center - support + 0.5)));
  const std::int64_t end =
      std::min(input.first + input.count,
               static_cast<std::int64_t>(std::floor(center + support + 0.5)));
  return {first, end - first};
}

// Each output pixel is the input pixel under its centre. PIL adds up the steps,
// and so must we to round as it does. The input begins at 0: no scaled image is
// resized so.
void find_nearest(const ResizeSide& side, std::vector<std::int64_t>& sources) {
  const double step = scale_of(side);
  const auto last = static_cast<std::int64_t>(side.end) - 1;
  sources.resize(static_cast<std::size_t>(side.count));
  double at = step * 0.5;
  for (std::int64_t i = 0; i < side.first + side.count; ++i, at += step)
    if (i >= side.first)
      sources[static_cast<std::size_t>(i - side.first)] =
          std::min(static_cast<std::int64_t>(at), last);
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

PixelSpan sources_of(const ResizeSide& side, std::int64_t in,
                     Interpolation interpolation) {
  if (is_unchanged(side)) return {side.first, side.count};
  const std::int64_t last = side.first + side.count - 1;
  if (interpolation == Interpolation::kNearest) {
    std::vector<std::int64_t> sources;
    find_nearest(side, sources);
    return {sources.front(), sources.back() - sources.front() + 1};
  }
  const double support = support_of(side, interpolation);
  const PixelSpan begin = summed_by(side, side.first, support, {0, in});
  const PixelSpan end = summed_by(side, last, support, {0, in});
  return {begin.first, end.first + end.count - begin.first};
}

void Resizer::pick_nearest(const ResizeSide& rows, const ResizeSide& columns,
                           const Image& input, Image& output) {
  reshape(output, {rows.count, columns.count}, input.channels);
  find_nearest(rows, nearest_rows_);
  find_nearest(columns, nearest_columns_);
  for (std::int64_t& row : nearest_rows_) row -= rows.offset;
  for (std::int64_t& column : nearest_columns_) column -= columns.offset;
  std::uint8_t* to = output.pixels.data();
  for (const std::int64_t row : nearest_rows_) {
    const std::uint8_t* from =
        input.pixels.data() + row * input.size.width * input.channels;
    to = (input.channels == 3 ? pick_columns<3>
                              : pick_columns<1>)(nearest_columns_, from, to);
  }
}

void Resizer::find_weights(const ResizeSide& side, std::int64_t in,
                           Interpolation interpolation, Weights& weights) {
  const bool is_cubic = interpolation == Interpolation::kBicubic;
  const double shrink = std::max(1.0, scale_of(side));
  const double support = support_of(side, interpolation);
  weights.taps = static_cast<std::int64_t>(std::ceil(support)) * 2 + 1;
  weights.spans.resize(static_cast<std::size_t>(side.count));
  weights.values.assign(static_cast<std::size_t>(side.count * weights.taps), 0);
  weights.exact.resize(static_cast<std::size_t>(weights.taps));
  for (std::int64_t i = 0; i < side.count; ++i) {
    const double center = center_of(side, side.first + i);
    const auto [first, count] =
        summed_by(side, side.first + i, support, {side.offset, in});
    double sum = 0;
    for (std::int64_t x = 0; x < count; ++x) {
      const double distance =
          (static_cast<double>(first + x) - center + 0.5) * (1.0 / shrink);
      const double weight = (is_cubic ? cubic(distance) : triangle(distance)) *
                            covered_part(side, first + x);
      weights.exact[static_cast<std::size_t>(x)] = weight;
      sum += weight;
    }
    std::int32_t* values = weights.values.data() + i * weights.taps;
    for (std::int64_t x = 0; x < count; ++x) {
      double weight = weights.exact[static_cast<std::size_t>(x)];
      if (sum != 0) weight /= sum;
      values[x] = static_cast<std::int32_t>((weight < 0 ? -0.5 : 0.5) +
                                            weight * (1 << kWeightPlaces));
    }
    weights.spans[static_cast<std::size_t>(i)] = {first - side.offset, count};
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

void Resizer::resize_rows(const ResizeSide& side, Interpolation interpolation,
                          const Image& input, Image& output) {
  const std::int64_t width = side.count;
  const std::int64_t channels = input.channels;
  find_weights(side, input.size.width, interpolation, weights_);
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

void Resizer::resize_columns(const ResizeSide& side,
                             Interpolation interpolation, const Image& input,
                             Image& output) {
  const std::int64_t height = side.count;
  find_weights(side, input.size.height, interpolation, weights_);
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
  const auto [rows, columns] = resize.sides.value_or(
      std::array{whole_side(input.size.height, resize.size.height),
                 whole_side(input.size.width, resize.size.width)});
  const Interpolation interpolation = resize.interpolation;
  const auto pixels_less = [](const ResizeSide& side) {
    return side.end - side.begin - static_cast<double>(side.out);
  };
  const double rows_less = pixels_less(rows);
  if (interpolation == Interpolation::kNearest) {
    pick_nearest(rows, columns, input, output);
  } else if (is_unchanged(rows) && is_unchanged(columns)) {
    output = input;
  } else if (is_unchanged(rows)) {
    resize_rows(columns, interpolation, input, output);
  } else if (is_unchanged(columns)) {
    resize_columns(rows, interpolation, input, output);
  } else if (rows_less > 0 && rows_less > 2 * pixels_less(columns)) {
    // Pillow 13 chose this order for speed; earlier ones never did.
    resize_columns(rows, interpolation, input, between_);
    resize_rows(columns, interpolation, between_, output);
  } else {
    resize_rows(columns, interpolation, input, between_);
    resize_columns(rows, interpolation, between_, output);
  }
}

}  // namespace lockstep::transforms
