// The loops over pixels that take most of an image's time, compiled for several
// instruction sets; the best is chosen at run time. All of them give the same
// bits.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/base/instruction_set.h"

namespace lockstep::transforms {

// The places after the binary point of a weight of WeightedRows and
// WeightedColumns: 32 bits, less 8 of the pixel and 2 of the sum.
inline constexpr int kWeightPlaces = 22;

// Which pixels of a row, `count` of them from `first` on, make one of another.
struct WeightedSpan {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

// Rows of which each output pixel is a weighted sum. Weights are in groups of
// kLanes: weights[(output pixel x groups + group) x kLanes + lane] is that of
// the lane-th byte of the group's input pixels, 0 beyond the last pixel. RGB
// has two pixels in a group, grey eight.
struct WeightedRows {
  static constexpr std::int64_t kLanes = 8;

  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
  std::int64_t rows = 0;
  std::int64_t channels = 0;
  std::int64_t from_width = 0;
  std::int64_t to_width = 0;
  const WeightedSpan* spans = nullptr;
  const std::int32_t* weights = nullptr;
  std::int64_t groups = 0;
};

// One row of which each byte is a weighted sum of those below it in `count`
// rows, which lie `bytes` apart.
struct WeightedColumns {
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
  std::int64_t bytes = 0;
  const std::int32_t* weights = nullptr;
  std::int64_t count = 0;
};

// Rows of floats of which each number is a weighted sum of those at its place,
// added in order.
struct WeightedFloats {
  const float* const* rows = nullptr;
  const float* weights = nullptr;
  std::size_t rows_count = 0;
  std::size_t count = 0;  // of numbers
  float* to = nullptr;
};

// RGB pixels of an image that lie on a line, `count` of them from (x, y) on.
// Coordinates have 16 places after the binary point; all pixels lie in the
// image and are not its last one.
struct PixelsOfLine {
  const std::uint8_t* from = nullptr;
  std::uint8_t* to = nullptr;
  std::int64_t count = 0;
  std::int32_t width = 0;  // of the image
  std::int32_t x = 0;
  std::int32_t y = 0;
  std::int32_t step_x = 0;
  std::int32_t step_y = 0;
};

// RGB pixels are three bytes.
struct PixelKernels {
  // Moves bytes from `degenerate` on towards their values by `factor`, and
  // beyond where it is above 1. The arithmetic is float32, and cuts off.
  void (*blend)(std::uint8_t* bytes, std::size_t count, std::uint8_t degenerate,
                float factor);
  // The same from each RGB pixel's grey value on.
  void (*blend_with_gray)(std::uint8_t* rgb, std::size_t pixels, float factor);
  // The grey values of RGB pixels: their sum, and in their place.
  std::uint64_t (*sum_of_gray)(const std::uint8_t* rgb, std::size_t pixels);
  void (*to_gray)(std::uint8_t* rgb, std::size_t pixels);
  // Adds to the hue, whose circle has 256 steps.
  void (*shift_hue)(std::uint8_t* rgb, std::size_t pixels, std::uint8_t steps);
  // Writes RGB pixels in the opposite order.
  void (*reverse)(const std::uint8_t* rgb, std::size_t pixels,
                  std::uint8_t* to);
  // Overwrites a byte behind the last pixel.
  void (*copy_line)(const PixelsOfLine& line);
  // Reads up to kLanes - 1 bytes beyond the last pixel of the last row.
  void (*sum_rows)(const WeightedRows& rows);
  void (*sum_columns)(const WeightedColumns& columns);
  void (*sum_floats)(const WeightedFloats& floats);
  // Numbers of 0 to 255, and a little beyond; halves go to the even number.
  void (*round_floats)(const float* numbers, std::size_t count,
                       std::uint8_t* to);
};

const PixelKernels& pixel_kernels(InstructionSet set = best_instruction_set());

}  // namespace lockstep::transforms
