#include "src/data/transform/rearrange.h"

#include <algorithm>
#include <cstring>

#include "src/data/transform/pixel_kernels.h"

namespace lockstep::transforms {
namespace {

const std::uint8_t* row_of(const Image& image, std::int64_t y) {
  return image.pixels.data() + y * image.size.width * image.channels;
}

std::uint8_t* row_of(Image& image, std::int64_t y) {
  return image.pixels.data() + y * image.size.width * image.channels;
}

// Where the pixel at `position`, which may lie outside 0 … length - 1, is taken
// from; -1 for the fill.
std::int64_t source_of(std::int64_t position, std::int64_t length,
                       PaddingMode mode) {
  if (position >= 0 && position < length) return position;
  switch (mode) {
    case PaddingMode::kConstant:
      return -1;
    case PaddingMode::kEdge:
      return std::clamp<std::int64_t>(position, 0, length - 1);
    case PaddingMode::kReflect:
      return position < 0 ? -position : 2 * (length - 1) - position;
    case PaddingMode::kSymmetric:
      return position < 0 ? -position - 1 : 2 * length - 1 - position;
  }
  return -1;
}

template <std::size_t kChannels>
void turn_pixels(const Turn& turn, const Image& input, Image& output) {
  const std::int64_t last_row = input.size.height - 1;
  const std::int64_t last_column = input.size.width - 1;
  std::uint8_t* to = output.pixels.data();
  for (std::int64_t y = 0; y < output.size.height; ++y)
    for (std::int64_t x = 0; x < output.size.width; ++x, to += kChannels) {
      std::int64_t from_y = last_row - y;
      std::int64_t from_x = last_column - x;
      if (turn.quarters == 1) {
        from_y = x;
        from_x = last_column - y;
      } else if (turn.quarters == 3) {
        from_y = last_row - x;
        from_x = y;
      }
      std::memcpy(to, row_of(input, from_y) + from_x * std::int64_t{kChannels},
                  kChannels);
    }
}

}  // namespace

void copy_planes(const Image& image, std::span<std::uint8_t> planes) {
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t area = image.pixels.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t i = 0; i < area; ++i)
      planes[channel * area + i] = image.pixels[i * channels + channel];
}

void reshape(Image& image, const ImageSize& size, std::int64_t channels) {
  image.size = size;
  image.channels = channels;
  image.pixels.resize(
      static_cast<std::size_t>(size.height * size.width * channels));
}

void apply(const Pad& pad, const Image& input, Image& output) {
  const auto [left, top, right, bottom] = pad.sides;
  const auto [height, width] = input.size;
  reshape(output, {height + top + bottom, width + left + right},
          input.channels);
  std::uint8_t* to = output.pixels.data();
  // Pixels `begin` … `end` - 1 of a row; `from` is that of the input, or null.
  const auto write_sides = [&](const std::uint8_t* from, std::int64_t begin,
                               std::int64_t end) {
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t column =
          source_of(x - pad.sides[0], input.size.width, pad.mode);
      to = std::copy_n(from == nullptr || column < 0
                           ? pad.fill.data()
                           : from + column * input.channels,
                       input.channels, to);
    }
  };
  for (std::int64_t y = 0; y < output.size.height; ++y) {
    const std::int64_t from_y = source_of(y - top, height, pad.mode);
    if (from_y < 0) {
      write_sides(nullptr, 0, output.size.width);
      continue;
    }
    const std::uint8_t* const from = row_of(input, from_y);
    write_sides(from, 0, left);
    to = std::copy_n(from, width * input.channels, to);
    write_sides(from, left + width, output.size.width);
  }
}

void apply(const Crop& crop, const Image& input, Image& output) {
  reshape(output, crop.region.size, input.channels);
  for (std::int64_t y = 0; y < output.size.height; ++y)
    std::copy_n(
        row_of(input, crop.region.top + y) + crop.region.left * input.channels,
        output.size.width * input.channels, row_of(output, y));
}

void apply(const Mirror& mirror, const Image& input, Image& output) {
  reshape(output, input.size, input.channels);
  const auto [height, width] = input.size;
  const PixelKernels& kernels = pixel_kernels();
  for (std::int64_t y = 0; y < height; ++y) {
    std::uint8_t* to = row_of(output, y);
    if (mirror.axis == Axis::kVertical) {
      std::copy_n(row_of(input, height - 1 - y), width * input.channels, to);
      continue;
    }
    if (input.channels == 3) {
      kernels.reverse(row_of(input, y), static_cast<std::size_t>(width), to);
      continue;
    }
    const std::uint8_t* from = row_of(input, y);
    std::reverse_copy(from, from + width, to);
  }
}

void apply(const Turn& turn, const Image& input, Image& output) {
  const auto [height, width] = input.size;
  reshape(output, turn.quarters == 2 ? input.size : ImageSize{width, height},
          input.channels);
  (input.channels == 3 ? turn_pixels<3> : turn_pixels<1>)(turn, input, output);
}

}  // namespace lockstep::transforms
