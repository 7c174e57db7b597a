#include "src/data/transform/affine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/data/transform/matrix.h"
#include "src/data/transform/pixel_kernels.h"
#include "src/data/transform/rearrange.h"

namespace lockstep::transforms {
namespace {

// Writes each pixel of `output` with `write(y, x, pixel)`.
template <class Write>
void write_pixels(Image& output, const Write& write) {
  std::uint8_t* pixel = output.pixels.data();
  for (std::int64_t y = 0; y < output.size.height; ++y)
    for (std::int64_t x = 0; x < output.size.width;
         ++x, pixel += output.channels)
      write(y, x, pixel);
}

// The pixel at (y, x), or the fill outside the image.
const std::uint8_t* pixel_or_fill(const Image& image, const Fill& fill,
                                  std::int64_t y, std::int64_t x) {
  if (y < 0 || y >= image.size.height || x < 0 || x >= image.size.width)
    return fill.data();
  return image.pixels.data() + (y * image.size.width + x) * image.channels;
}

// The pixel in which a coordinate lies; -1 before the first.
std::int64_t pixel_at(double coordinate) {
  return coordinate < 0 ? -1 : static_cast<std::int64_t>(coordinate);
}

// Without rotation and shear: columns come from columns, and PIL adds the steps
// up, so that this must too. It does so for some columns at a time.
template <std::size_t kChannels>
void map_scaled(const MapAffine& map, const Image& input, Image& output) {
  const Matrix& m = map.matrix;
  std::array<std::int64_t, 256> columns{};
  double column_at = m[2] + m[0] * 0.5;
  std::uint8_t* const pixels = output.pixels.data();
  for (std::int64_t begin = 0; begin < map.size.width;
       begin += std::ssize(columns)) {
    const std::int64_t count =
        std::min(std::ssize(columns), map.size.width - begin);
    for (std::int64_t i = 0; i < count; ++i, column_at += m[0])
      columns[static_cast<std::size_t>(i)] = pixel_at(column_at);
    double row_at = m[5] + m[4] * 0.5;
    for (std::int64_t y = 0; y < map.size.height; ++y, row_at += m[4]) {
      std::uint8_t* to =
          pixels + (y * map.size.width + begin) * std::int64_t{kChannels};
      const std::int64_t row = pixel_at(row_at);
      for (std::int64_t i = 0; i < count; ++i, to += kChannels)
        std::memcpy(to,
                    pixel_or_fill(input, map.fill, row,
                                  columns[static_cast<std::size_t>(i)]),
                    kChannels);
    }
  }
}

// Whether all coordinates fit into 16 bits before the binary point.
bool fits_fixed_point(const MapAffine& map) {
  const auto w = static_cast<double>(map.size.width);
  const auto h = static_cast<double>(map.size.height);
  const auto fits = [&map](double x, double y) {
    const Matrix& m = map.matrix;
    return std::abs(x * m[0] + y * m[1] + m[2]) < 32768.0 &&
           std::abs(x * m[3] + y * m[4] + m[5]) < 32768.0;
  };
  return fits(0, 0) && fits(w, h) && fits(0, h) && fits(w, 0);
}

std::int64_t to_fixed(double value) {
  return static_cast<std::int64_t>(std::floor(value * 65536.0 + 0.5));
}

// The numbers x in begin … end - 1.
struct Stretch {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

std::int64_t floor_of(std::int64_t number, std::int64_t divisor) {
  const std::int64_t cut = number / divisor;
  return cut - (number % divisor != 0 && (number < 0) != (divisor < 0) ? 1 : 0);
}

// The part of `among` where 0 <= first + x * step < end.
Stretch stretch_inside(std::int64_t first, std::int64_t step, std::int64_t end,
                       const Stretch& among) {
  if (step == 0) return first >= 0 && first < end ? among : Stretch{};
  // A step down is one up from the other end.
  if (step < 0) return stretch_inside(end - 1 - first, -step, end, among);
  const std::int64_t begin =
      std::clamp(-floor_of(first, step), among.begin, among.end);
  return {begin,
          std::clamp(floor_of(end - 1 - first, step) + 1, begin, among.end)};
}

template <std::size_t kChannels>
std::uint8_t* write_fill(const Fill& fill, std::int64_t pixels,
                         std::uint8_t* to) {
  for (; pixels > 0; --pixels, to += kChannels)
    std::memcpy(to, fill.data(), kChannels);
  return to;
}

// The pixels of an output row that lie in the input: `count` of them, from
// (x, y) on, each a step further, in fixed-point numbers.
struct InputLine {
  std::int64_t count = 0;
  std::int64_t x = 0;
  std::int64_t y = 0;
  std::int64_t step_x = 0;
  std::int64_t step_y = 0;
};

template <std::size_t kChannels>
std::uint8_t* copy_pixels_of(InputLine& line, std::int64_t count,
                             const Image& input, std::uint8_t* to) {
  const std::uint8_t* const pixels = input.pixels.data();
  const std::int64_t width = input.size.width;
  line.count -= count;
  for (; count > 0; --count, to += kChannels) {
    const std::int64_t from = (line.y >> 16) * width + (line.x >> 16);
    std::memcpy(to, pixels + static_cast<std::size_t>(from) * kChannels,
                kChannels);
    line.x += line.step_x;
    line.y += line.step_y;
  }
  return to;
}

// The part of a line that lies in the last pixel of an image of `size`.
Stretch in_last_pixel(const InputLine& line, const ImageSize& size) {
  constexpr std::int64_t kOne = 1 << 16;
  const std::int64_t x = line.x - (size.width - 1) * kOne;
  const std::int64_t y = line.y - (size.height - 1) * kOne;
  const std::int64_t steps = line.count - 1;
  // Most lines stay above the last row, or left of the last column.
  if (std::max(x, x + steps * line.step_x) < 0 ||
      std::max(y, y + steps * line.step_y) < 0)
    return {};
  return stretch_inside(y, line.step_y, kOne,
                        stretch_inside(x, line.step_x, kOne, {0, line.count}));
}

// RGB pixels, none of which is the last one of the input.
std::uint8_t* copy_by_kernel(InputLine& line, std::int64_t count,
                             const Image& input, std::uint8_t* to) {
  const std::int64_t by_kernel = count - 1;  // it writes behind its last one
  if (by_kernel > 0) {
    pixel_kernels().copy_line(
        {.from = input.pixels.data(),
         .to = to,
         .count = by_kernel,
         .width = static_cast<std::int32_t>(input.size.width),
         .x = static_cast<std::int32_t>(line.x),
         .y = static_cast<std::int32_t>(line.y),
         .step_x = static_cast<std::int32_t>(line.step_x),
         .step_y = static_cast<std::int32_t>(line.step_y)});
    to += by_kernel * 3;
    line.x += by_kernel * line.step_x;
    line.y += by_kernel * line.step_y;
    line.count -= by_kernel;
    count = 1;
  }
  return copy_pixels_of<3>(line, count, input, to);
}

template <std::size_t kChannels>
std::uint8_t* write_line(InputLine line, const Image& input, std::uint8_t* to) {
  constexpr std::int64_t kMostSide = 32767;  // as the kernel's numbers have it
  const bool is_large =
      std::max(input.size.height, input.size.width) > kMostSide;
  if (kChannels != 3 || is_large || line.count == 0)
    return copy_pixels_of<kChannels>(line, line.count, input, to);
  // Behind the last pixel of the input the kernel must not read.
  const Stretch last = in_last_pixel(line, input.size);
  to = copy_by_kernel(line, last.begin, input, to);
  to = copy_pixels_of<3>(line, last.end - last.begin, input, to);
  return copy_by_kernel(line, line.count, input, to);
}

template <std::size_t kChannels>
void map_nearest_fixed(const MapAffine& map, const Image& input,
                       Image& output) {
  const Matrix& m = map.matrix;
  const auto [height, width] = input.size;
  const std::int64_t step_x = to_fixed(m[0]);
  const std::int64_t step_y = to_fixed(m[3]);
  std::int64_t row_x = to_fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  std::int64_t row_y = to_fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  std::uint8_t* to = output.pixels.data();
  for (std::int64_t y = 0; y < map.size.height; ++y) {
    const Stretch both = stretch_inside(
        row_y, step_y, height << 16,
        stretch_inside(row_x, step_x, width << 16, {0, map.size.width}));
    to = write_fill<kChannels>(map.fill, both.begin, to);
    to = write_line<kChannels>({.count = both.end - both.begin,
                                .x = row_x + both.begin * step_x,
                                .y = row_y + both.begin * step_y,
                                .step_x = step_x,
                                .step_y = step_y},
                               input, to);
    to = write_fill<kChannels>(map.fill, map.size.width - both.end, to);
    row_x += to_fixed(m[1]);
    row_y += to_fixed(m[4]);
  }
}

struct Point {
  double x = 0;
  double y = 0;
};

// What the centre of the output pixel at (x, y) is in the input.
Point source_of(const Matrix& m, std::int64_t y, std::int64_t x) {
  const double center_x = static_cast<double>(x) + 0.5;
  const double center_y = static_cast<double>(y) + 0.5;
  return {m[0] * center_x + m[1] * center_y + m[2],
          m[3] * center_x + m[4] * center_y + m[5]};
}

bool lies_in(const Image& image, const Point& point) {
  return point.x >= 0 && point.x < static_cast<double>(image.size.width) &&
         point.y >= 0 && point.y < static_cast<double>(image.size.height);
}

void map_nearest(const MapAffine& map, const Image& input, Image& output) {
  write_pixels(output, [&](std::int64_t y, std::int64_t x, std::uint8_t* to) {
    const Point from = source_of(map.matrix, y, x);
    std::copy_n(
        pixel_or_fill(input, map.fill, pixel_at(from.y), pixel_at(from.x)),
        input.channels, to);
  });
}

// The neighbours of a point along one side, N of them around it, as offsets of
// their first channel, and how far the point is from the N/2-th.
template <std::size_t N>
struct Neighbours {
  std::array<std::int64_t, N> offsets{};
  double distance = 0;
};

template <std::size_t N>
Neighbours<N> neighbours(double at, std::int64_t length, std::int64_t stride) {
  at -= 0.5;
  const double floor = std::floor(at);
  Neighbours<N> found{.distance = at - floor};
  const auto first =
      static_cast<std::int64_t>(floor) - static_cast<std::int64_t>(N / 2 - 1);
  for (std::size_t i = 0; i < N; ++i)
    found.offsets[i] =
        std::clamp<std::int64_t>(first + static_cast<std::int64_t>(i), 0,
                                 length - 1) *
        stride;
  return found;
}

double interpolate(const std::array<double, 2>& v, double d) {
  return v[0] + (v[1] - v[0]) * d;
}

// The cubic with a = -1 through the middle two.
double interpolate(const std::array<double, 4>& v, double d) {
  const double p1 = v[1];
  const double p2 = -v[0] + v[2];
  const double p3 = 2 * (v[0] - v[1]) + v[2] - v[3];
  const double p4 = -v[0] + v[1] - v[2] + v[3];
  return p1 + d * (p2 + d * (p3 + d * p4));
}

template <std::size_t N>
void map_smooth(const MapAffine& map, const Image& input, Image& output) {
  const std::int64_t channels = input.channels;
  write_pixels(output, [&](std::int64_t y, std::int64_t x, std::uint8_t* to) {
    const Point from = source_of(map.matrix, y, x);
    if (!lies_in(input, from)) {
      std::copy_n(map.fill.data(), channels, to);
      return;
    }
    const auto rows =
        neighbours<N>(from.y, input.size.height, input.size.width * channels);
    const auto columns = neighbours<N>(from.x, input.size.width, channels);
    for (std::int64_t channel = 0; channel < channels; ++channel) {
      const std::uint8_t* pixels = input.pixels.data() + channel;
      std::array<double, N> along{};
      for (std::size_t i = 0; i < N; ++i) {
        std::array<double, N> values{};
        for (std::size_t j = 0; j < N; ++j)
          values[j] = pixels[rows.offsets[i] + columns.offsets[j]];
        along[i] = interpolate(values, columns.distance);
      }
      to[channel] = static_cast<std::uint8_t>(
          std::clamp(interpolate(along, rows.distance), 0.0, 255.0));
    }
  });
}

}  // namespace

void apply(const MapAffine& map, const Image& input, Image& output) {
  reshape(output, map.size, input.channels);
  switch (map.interpolation) {
    case Interpolation::kBilinear:
      return map_smooth<2>(map, input, output);
    case Interpolation::kBicubic:
      return map_smooth<4>(map, input, output);
    case Interpolation::kNearest:
      break;
  }
  if (map.matrix[1] == 0 && map.matrix[3] == 0)
    (input.channels == 3 ? map_scaled<3> : map_scaled<1>)(map, input, output);
  else if (fits_fixed_point(map))
    (input.channels == 3 ? map_nearest_fixed<3>
                         : map_nearest_fixed<1>)(map, input, output);
  else
    map_nearest(map, input, output);
}

}  // namespace lockstep::transforms
