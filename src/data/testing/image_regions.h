// Compares regions that an ImageReader decodes with the whole image.
//
// Threads: any thread.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>

#include "src/data/image/image_reader.h"

namespace lockstep {

// The pixels that `region` has in `whole`.
inline Image region_of(const Image& whole, const ImageRegion& region) {
  Image image{.size = region.size, .channels = whole.channels};
  for (std::int64_t row = 0; row < region.size.height; ++row) {
    const auto start =
        whole.pixels.begin() +
        ((region.top + row) * whole.size.width + region.left) * whole.channels;
    image.pixels.insert(image.pixels.end(), start,
                        start + region.size.width * whole.channels);
  }
  return image;
}

// Expects of many regions of an image that decoding one alone gives the pixels
// that the whole image has there: all ranges of columns, all ranges of rows,
// and ranges of both.
inline void check_regions(std::span<const std::byte> file,
                          const DecodeOptions& options = {},
                          int denominator = 1) {
  ImageReader reader;
  const auto [height, width] =
      scaled_size(reader.open(file, "whole", options), denominator);
  Image whole;
  reader.read({.size = {height, width}}, denominator, whole);
  Image image;
  const auto check = [&](const ImageRegion& region) {
    reader.open(file, "region", options);
    reader.read(region, denominator, image);
    ASSERT_EQ(image.size, region.size);
    ASSERT_EQ(image.channels, whole.channels);
    ASSERT_EQ(image.pixels, region_of(whole, region).pixels)
        << region.size.height << " x " << region.size.width << " at row "
        << region.top << ", column " << region.left;
  };
  for (std::int64_t left = 0; left < width; ++left)
    for (std::int64_t right = left + 1; right <= width; ++right)
      ASSERT_NO_FATAL_FAILURE(
          check({height / 2, left, {height / 4 + 1, right - left}}));
  for (std::int64_t top = 0; top < height; ++top)
    for (std::int64_t bottom = top + 1; bottom <= height; ++bottom)
      ASSERT_NO_FATAL_FAILURE(
          check({top, width / 3, {bottom - top, width / 3 + 1}}));
  std::mt19937 random(1);
  const auto range = [&](std::int64_t length) {
    return std::minmax({static_cast<std::int64_t>(random()) % length,
                        static_cast<std::int64_t>(random()) % length});
  };
  for (int i = 0; i < 500; ++i) {
    const auto [top, bottom] = range(height);
    const auto [left, right] = range(width);
    ASSERT_NO_FATAL_FAILURE(
        check({top, left, {bottom - top + 1, right - left + 1}}));
  }
}

}  // namespace lockstep
