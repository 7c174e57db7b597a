// Holds the kernels of each instruction set of this CPU against plain versions,
// which are PIL's arithmetic, bit for bit.
#include "src/data/transform/pixel_kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace lockstep::transforms {
namespace {

using Pixels = std::vector<std::uint8_t>;

std::vector<InstructionSet> sets_of_this_cpu() {
  std::vector<InstructionSet> sets;
  for (int set = 0; set <= static_cast<int>(best_instruction_set()); ++set)
    sets.push_back(static_cast<InstructionSet>(set));
  return sets;
}

std::uint8_t plain_gray(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>(
      (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

std::uint8_t plain_blend(std::uint8_t from, std::uint8_t value, float factor) {
  const float blended = static_cast<float>(from) +
                        factor * static_cast<float>(int{value} - int{from});
  return static_cast<std::uint8_t>(std::clamp(blended, 0.0f, 255.0f));
}

std::uint8_t share_of_255(float share) {
  return static_cast<std::uint8_t>(
      std::clamp(static_cast<int>(share * 255.0), 0, 255));
}

// Hue, saturation and value.
std::array<std::uint8_t, 3> plain_hsv(const std::uint8_t* rgb) {
  const auto [least, most] = std::minmax({rgb[0], rgb[1], rgb[2]});
  if (least == most) return {0, 0, most};
  const auto range = static_cast<float>(most - least);
  const auto rest = [&, high = most](std::size_t i) {
    return static_cast<float>(high - rgb[i]) / range;
  };
  float hue = 0;
  if (rgb[0] == most)
    hue = rest(2) - rest(1);
  else if (rgb[1] == most)
    hue = static_cast<float>(2.0 + rest(0) - rest(2));
  else
    hue = static_cast<float>(4.0 + rest(1) - rest(0));
  hue = static_cast<float>(std::fmod(hue / 6.0 + 1.0, 1.0));
  return {share_of_255(hue), share_of_255(range / static_cast<float>(most)),
          most};
}

void plain_rgb(const std::array<std::uint8_t, 3>& hsv, std::uint8_t* rgb) {
  const auto [hue, saturation, value] = hsv;
  if (saturation == 0) {
    std::fill_n(rgb, 3, value);
    return;
  }
  const float sixths = static_cast<float>(hue * 6.0 / 255.0);
  const int sector = static_cast<int>(std::floor(sixths));
  const float f = sixths - static_cast<float>(sector);
  const float fs = static_cast<float>(saturation / 255.0);
  const auto rounded = [v = value](double share) {
    return static_cast<std::uint8_t>(
        std::clamp(static_cast<int>(std::round(v * share)), 0, 255));
  };
  const std::uint8_t v = value;
  const std::uint8_t p = rounded(1.0 - fs);
  const std::uint8_t q = rounded(1.0 - static_cast<double>(fs * f));
  const std::uint8_t t = rounded(1.0 - fs * (1.0 - f));
  const std::array<std::array<std::uint8_t, 3>, 6> sectors{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::ranges::copy(sectors[static_cast<std::size_t>(sector % 6)], rgb);
}

void plain_shift_hue(Pixels& rgb, std::uint8_t steps) {
  for (std::size_t i = 0; i < rgb.size(); i += 3) {
    auto hsv = plain_hsv(&rgb[i]);
    hsv[0] = static_cast<std::uint8_t>(hsv[0] + steps);
    plain_rgb(hsv, &rgb[i]);
  }
}

void expect_shifted(const Pixels& rgb, std::uint8_t steps) {
  Pixels expected = rgb;
  plain_shift_hue(expected, steps);
  for (const InstructionSet set : sets_of_this_cpu()) {
    Pixels found = rgb;
    pixel_kernels(set).shift_hue(found.data(), found.size() / 3, steps);
    ASSERT_TRUE(found == expected)
        << name_of(set) << ", " << int{steps} << " steps";
  }
}

// Red is the largest and the other two are equal: the hue is 0 before the
// shift, and any after it, with every saturation and value that exists.
TEST(PixelKernels, MakeRgbOfEveryHueSaturationAndValueAsPilDoes) {
  Pixels rgb;
  for (int value = 0; value < 256; ++value)
    for (int rest = 0; rest <= value; ++rest)
      for (const int color : {value, rest, rest})
        rgb.push_back(static_cast<std::uint8_t>(color));
  for (int steps = 0; steps < 256; ++steps)
    ASSERT_NO_FATAL_FAILURE(
        expect_shifted(rgb, static_cast<std::uint8_t>(steps)));
}

// Hues depend on the differences of the colours alone.
TEST(PixelKernels, FindEveryHueAsPilDoes) {
  Pixels rgb;
  for (std::size_t largest = 0; largest < 3; ++largest)
    for (int i = 0; i < 256 * 256; ++i) {
      std::array<int, 3> colors{i / 256, i / 256, i / 256};
      colors[largest] = 255;
      colors[(largest + 1) % 3] = i % 256;
      for (const int color : colors)
        rgb.push_back(static_cast<std::uint8_t>(color));
    }
  for (const std::uint8_t steps : {0, 1, 100, 128, 255})
    ASSERT_NO_FATAL_FAILURE(expect_shifted(rgb, steps));
}

// Draws what a kernel is given.
class PixelKernelsOfSet : public ::testing::TestWithParam<InstructionSet> {
 protected:
  static constexpr int kTrials = 300;

  Pixels draw(std::size_t bytes) {
    Pixels drawn(bytes);
    for (std::uint8_t& byte : drawn)
      byte = static_cast<std::uint8_t>(below(256));
    return drawn;
  }
  std::int64_t below(std::int64_t end) {
    return std::uniform_int_distribution<std::int64_t>(0, end - 1)(random_);
  }
  float factor() {
    constexpr std::array<float, 5> kSpecial{0, 1, 2, 1e9f, 3e38f};
    const auto which = static_cast<std::size_t>(below(20));
    if (which < kSpecial.size()) return kSpecial[which];
    return factor(3);
  }
  float factor(float most) {
    return std::uniform_real_distribution<float>(0, most)(random_);
  }
  // Also sums below 0 and above 255 come of these, of up to 11 pixels, but 32
  // bits hold them.
  std::int32_t weight() {
    return static_cast<std::int32_t>(below(3 << 18)) - (1 << 18);
  }
  const PixelKernels& kernels() const { return pixel_kernels(GetParam()); }

  static constexpr std::uint32_t kSeed = 20261127;
  const ::testing::ScopedTrace seed_{__FILE__, __LINE__,
                                     "seed " + std::to_string(kSeed)};

 private:
  std::mt19937 random_{kSeed};
};

TEST_P(PixelKernelsOfSet, BlendAsPilDoes) {
  for (int trial = 0; trial < kTrials; ++trial) {
    const Pixels before = draw(static_cast<std::size_t>(3 * below(200)));
    const float by = factor();
    const auto from = static_cast<std::uint8_t>(below(256));
    Pixels found = before;
    kernels().blend(found.data(), found.size(), from, by);
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i], plain_blend(from, before[i], by)) << by;
    found = before;
    kernels().blend_with_gray(found.data(), found.size() / 3, by);
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i],
                plain_blend(plain_gray(&before[i / 3 * 3]), before[i], by))
          << by;
  }
}

TEST_P(PixelKernelsOfSet, FindGreyValuesAsPilDoes) {
  for (int trial = 0; trial < kTrials; ++trial) {
    const Pixels before = draw(static_cast<std::size_t>(3 * below(200)));
    Pixels found = before;
    kernels().to_gray(found.data(), found.size() / 3);
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(found[i], plain_gray(&before[i / 3 * 3]));
      if (i % 3 == 0) sum += found[i];
    }
    ASSERT_EQ(kernels().sum_of_gray(before.data(), before.size() / 3), sum);
  }
}

TEST_P(PixelKernelsOfSet, ReversePixels) {
  for (std::size_t pixels = 0; pixels < 40; ++pixels) {
    const Pixels before = draw(3 * pixels);
    Pixels found(before.size());
    kernels().reverse(before.data(), pixels, found.data());
    for (std::size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i], before[(pixels - 1 - i / 3) * 3 + i % 3]);
  }
}

TEST_P(PixelKernelsOfSet, CopyPixelsOfALine) {
  constexpr std::int64_t kOne = 1 << 16;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::int64_t width = 1 + below(60);
    const std::int64_t height = 2 + below(60);
    const std::int64_t count = below(60);
    // Both ends lie in the image, above its last row.
    const auto ends = [&](std::int64_t side) {
      const std::int64_t first = below(side * kOne);
      const std::int64_t last = below(side * kOne);
      return std::pair(first,
                       (last - first) / std::max<std::int64_t>(count, 1));
    };
    const auto [x, step_x] = ends(width);
    const auto [y, step_y] = ends(height - 1);
    const Pixels from = draw(static_cast<std::size_t>(3 * width * height));
    Pixels to(static_cast<std::size_t>(3 * count + 1));
    kernels().copy_line({.from = from.data(),
                         .to = to.data(),
                         .count = count,
                         .width = static_cast<std::int32_t>(width),
                         .x = static_cast<std::int32_t>(x),
                         .y = static_cast<std::int32_t>(y),
                         .step_x = static_cast<std::int32_t>(step_x),
                         .step_y = static_cast<std::int32_t>(step_y)});
    for (std::int64_t i = 0; i < 3 * count; ++i) {
      const std::int64_t pixel =
          ((y + i / 3 * step_y) >> 16) * width + ((x + i / 3 * step_x) >> 16);
      ASSERT_EQ(to[static_cast<std::size_t>(i)],
                from[static_cast<std::size_t>(3 * pixel + i % 3)]);
    }
  }
}

std::uint8_t rounded_sum(std::int32_t sum) {
  constexpr std::int32_t kHalf = 1 << (kWeightPlaces - 1);
  return static_cast<std::uint8_t>(
      std::clamp((sum + kHalf) >> kWeightPlaces, 0, 255));
}

TEST_P(PixelKernelsOfSet, SumColumns) {
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::int64_t bytes = 1 + below(150);
    std::vector<std::int32_t> weights(static_cast<std::size_t>(1 + below(9)));
    for (std::int32_t& one : weights) one = weight();
    const auto count = std::ssize(weights);
    const Pixels from = draw(static_cast<std::size_t>(bytes * count));
    Pixels to(static_cast<std::size_t>(bytes));
    kernels().sum_columns({.from = from.data(),
                           .to = to.data(),
                           .bytes = bytes,
                           .weights = weights.data(),
                           .count = count});
    for (std::int64_t x = 0; x < bytes; ++x) {
      std::int32_t sum = 0;
      for (std::int64_t i = 0; i < count; ++i)
        sum += weights[static_cast<std::size_t>(i)] *
               from[static_cast<std::size_t>(i * bytes + x)];
      ASSERT_EQ(to[static_cast<std::size_t>(x)], rounded_sum(sum));
    }
  }
}

// The arguments of sum_rows() in memory, with taps in groups.
struct DrawnRows {
  WeightedRows rows{};
  Pixels from{};
  Pixels to{};
  std::vector<WeightedSpan> spans{};
  std::vector<std::int32_t> weights{};

  std::int32_t weight(std::int64_t x, std::int64_t tap) const {
    const std::int64_t pixels = WeightedRows::kLanes / rows.channels;
    const std::int64_t lane = tap % pixels * rows.channels;
    const std::int64_t group = x * rows.groups + tap / pixels;
    return weights[static_cast<std::size_t>(group * WeightedRows::kLanes +
                                            lane)];
  }
  std::uint8_t expected(std::int64_t y, std::int64_t x,
                        std::int64_t channel) const {
    std::int32_t sum = 0;
    const auto [first, count] = spans[static_cast<std::size_t>(x)];
    for (std::int64_t i = 0; i < count; ++i)
      sum += weight(x, i) *
             from[static_cast<std::size_t>(
                 (y * rows.from_width + first + i) * rows.channels + channel)];
    return rounded_sum(sum);
  }
};

TEST_P(PixelKernelsOfSet, SumRows) {
  for (int trial = 0; trial < kTrials; ++trial) {
    DrawnRows drawn;
    WeightedRows& rows = drawn.rows;
    rows = {.rows = below(10),
            .channels = below(2) == 0 ? 1 : 3,
            .from_width = 1 + below(40),
            .to_width = 1 + below(40)};
    const std::int64_t pixels = WeightedRows::kLanes / rows.channels;
    const std::int64_t most = std::min<std::int64_t>(rows.from_width, 11);
    rows.groups = (most + pixels - 1) / pixels;
    drawn.weights.resize(static_cast<std::size_t>(rows.to_width * rows.groups *
                                                  WeightedRows::kLanes));
    for (std::int64_t x = 0; x < rows.to_width; ++x) {
      const std::int64_t count = 1 + below(most);
      drawn.spans.push_back({below(rows.from_width - count + 1), count});
      for (std::int64_t tap = 0; tap < count; ++tap)
        std::fill_n(
            drawn.weights.begin() +
                (x * rows.groups + tap / pixels) * WeightedRows::kLanes +
                tap % pixels * rows.channels,
            rows.channels, weight());
    }
    drawn.from = draw(
        static_cast<std::size_t>(rows.rows * rows.from_width * rows.channels +
                                 WeightedRows::kLanes - 1));
    drawn.to.resize(
        static_cast<std::size_t>(rows.rows * rows.to_width * rows.channels));
    rows.from = drawn.from.data();
    rows.to = drawn.to.data();
    rows.spans = drawn.spans.data();
    rows.weights = drawn.weights.data();
    kernels().sum_rows(rows);
    std::size_t at = 0;
    for (std::int64_t y = 0; y < rows.rows; ++y)
      for (std::int64_t x = 0; x < rows.to_width; ++x)
        for (std::int64_t channel = 0; channel < rows.channels; ++channel)
          ASSERT_EQ(drawn.to[at++], drawn.expected(y, x, channel));
  }
}

TEST_P(PixelKernelsOfSet, SumAndRoundFloats) {
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto count = static_cast<std::size_t>(below(150));
    std::vector<float> weights(static_cast<std::size_t>(1 + below(9)));
    std::vector<std::vector<float>> rows(weights.size());
    std::vector<const float*> addresses;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      weights[i] = factor(3) / static_cast<float>(rows.size());
      for (const std::uint8_t byte : draw(count))
        rows[i].push_back(static_cast<float>(byte) + factor(1) - 0.5f);
      addresses.push_back(rows[i].data());
    }
    std::vector<float> sums(count);
    kernels().sum_floats({.rows = addresses.data(),
                          .weights = weights.data(),
                          .rows_count = rows.size(),
                          .count = count,
                          .to = sums.data()});
    Pixels bytes(count);
    kernels().round_floats(sums.data(), count, bytes.data());
    for (std::size_t x = 0; x < count; ++x) {
      float sum = 0;
      for (std::size_t i = 0; i < rows.size(); ++i)
        sum += weights[i] * rows[i][x];
      ASSERT_EQ(sums[x], sum);
      ASSERT_EQ(bytes[x], static_cast<std::uint8_t>(
                              std::clamp(std::nearbyint(sum), 0.0f, 255.0f)));
    }
  }
}

TEST_P(PixelKernelsOfSet, RoundHalvesToEvenNumbers) {
  std::vector<float> halves;
  for (int i = 0; i < 255; ++i) halves.push_back(static_cast<float>(i) + 0.5f);
  Pixels bytes(halves.size());
  kernels().round_floats(halves.data(), halves.size(), bytes.data());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    ASSERT_EQ(bytes[i], (i + 1) / 2 * 2);
}

INSTANTIATE_TEST_SUITE_P(Each, PixelKernelsOfSet,
                         ::testing::ValuesIn(sets_of_this_cpu()),
                         [](const auto& set) {
                           std::string name(name_of(set.param));
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace lockstep::transforms
