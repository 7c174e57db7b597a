// Holds whole rows of nearest pixels against each pixel found alone.
#include "src/data/transform/affine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep::transforms {
namespace {

// PIL's arithmetic, in fixed-point numbers of 16 places.
Image mapped_plainly(const MapAffine& map, const Image& input) {
  const auto fixed = [](double number) {
    return static_cast<std::int64_t>(std::floor(number * 65536.0 + 0.5));
  };
  const auto& m = map.matrix;
  const auto channels = static_cast<std::size_t>(input.channels);
  Image output{.size = map.size, .channels = input.channels};
  for (std::int64_t y = 0; y < map.size.height; ++y)
    for (std::int64_t x = 0; x < map.size.width; ++x) {
      const std::int64_t from_x = fixed(m[2] + m[0] * 0.5 + m[1] * 0.5) +
                                  y * fixed(m[1]) + x * fixed(m[0]);
      const std::int64_t from_y = fixed(m[5] + m[3] * 0.5 + m[4] * 0.5) +
                                  y * fixed(m[4]) + x * fixed(m[3]);
      const bool inside = from_x >= 0 && from_x >> 16 < input.size.width &&
                          from_y >= 0 && from_y >> 16 < input.size.height;
      const std::int64_t pixel =
          (from_y >> 16) * input.size.width + (from_x >> 16);
      for (std::size_t channel = 0; channel < channels; ++channel)
        output.pixels.push_back(
            inside ? input.pixels[static_cast<std::size_t>(pixel) * channels +
                                  channel]
                   : map.fill[channel]);
    }
  return output;
}

TEST(MapAffine, FindsTheNearestPixelsOfRowsAsEachAlone) {
  constexpr std::uint32_t kSeed = 20261127;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  const auto side = [&] {
    return 1 + static_cast<std::int64_t>(random() % 40);
  };
  const auto uniform = [&](double low, double high) {
    return std::uniform_real_distribution(low, high)(random);
  };
  for (int trial = 0; trial < 2000; ++trial) {
    Image input{.size = {side(), side()}, .channels = trial % 5 == 0 ? 1 : 3};
    input.pixels.resize(static_cast<std::size_t>(
        input.size.height * input.size.width * input.channels));
    std::ranges::generate(input.pixels,
                          [&] { return static_cast<std::uint8_t>(random()); });
    MapAffine map{.size = {side(), side()}, .fill = {7, 8, 9}};
    for (double& number : map.matrix) number = uniform(-2, 2);
    // The centre comes from somewhere in the input, or near it.
    map.matrix[2] += uniform(-0.2, 1.2) * static_cast<double>(input.size.width);
    map.matrix[5] +=
        uniform(-0.2, 1.2) * static_cast<double>(input.size.height);
    // Rows that run along a side of the input, or stay on one pixel.
    if (trial % 7 == 0) map.matrix[3] = 1e-9;
    if (trial % 11 == 0) map.matrix[0] = 1e-9;
    Image output;
    apply(map, input, output);
    ASSERT_EQ(output.size, map.size);
    ASSERT_TRUE(output.pixels == mapped_plainly(map, input).pixels) << trial;
  }
}

}  // namespace
}  // namespace lockstep::transforms
