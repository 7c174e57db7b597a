#include "src/data/transform/color.h"

#include <algorithm>
#include <cmath>

namespace lockstep::transforms {
namespace {

constexpr std::int64_t kRgb = 3;

std::uint8_t gray_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>(
      (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16);
}

// From `degenerate` on towards `value` by `factor`, and beyond where it is
// above 1. The arithmetic is float32, and cuts off.
std::uint8_t blend(std::uint8_t degenerate, std::uint8_t value, float factor) {
  const float blended =
      static_cast<float>(degenerate) +
      factor * static_cast<float>(int{value} - int{degenerate});
  return static_cast<std::uint8_t>(std::clamp(blended, 0.0f, 255.0f));
}

// The mean of the grey values, rounded.
std::uint8_t mean_gray(const Image& image) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < image.pixels.size();
       i += static_cast<std::size_t>(image.channels))
    sum += image.channels == kRgb ? gray_of(&image.pixels[i]) : image.pixels[i];
  const auto count = static_cast<double>(image.size.height * image.size.width);
  return static_cast<std::uint8_t>(
      std::floor(static_cast<double>(sum) / count + 0.5));
}

// All pixels move away from, or towards, the same value.
void blend_all(std::uint8_t degenerate, float factor, Image& image) {
  std::array<std::uint8_t, 256> table{};
  for (std::size_t value = 0; value < table.size(); ++value)
    table[value] = blend(degenerate, static_cast<std::uint8_t>(value), factor);
  for (std::uint8_t& pixel : image.pixels) pixel = table[pixel];
}

template <class Change>
void for_each_rgb(Image& image, const Change& change) {
  if (image.channels != kRgb) return;
  for (std::size_t i = 0; i < image.pixels.size(); i += kRgb)
    change(&image.pixels[i]);
}

struct Hsv {
  std::uint8_t hue = 0;
  std::uint8_t saturation = 0;
  std::uint8_t value = 0;
};

std::uint8_t to_8_bits(float share) {
  return static_cast<std::uint8_t>(
      std::clamp(static_cast<int>(share * 255.0), 0, 255));
}

Hsv to_hsv(const std::uint8_t* rgb) {
  const auto [least, most] = std::minmax({rgb[0], rgb[1], rgb[2]});
  if (least == most) return {.value = most};
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
  return {.hue = to_8_bits(hue),
          .saturation = to_8_bits(range / static_cast<float>(most)),
          .value = most};
}

void to_rgb(const Hsv& hsv, std::uint8_t* rgb) {
  const std::uint8_t v = hsv.value;
  if (hsv.saturation == 0) {
    std::fill_n(rgb, kRgb, v);
    return;
  }
  const float sixths = static_cast<float>(hsv.hue * 6.0 / 255.0);
  const int sector = static_cast<int>(std::floor(sixths));
  const float f = sixths - static_cast<float>(sector);
  const float fs = static_cast<float>(hsv.saturation / 255.0);
  const auto rounded = [v](double share) {
    return static_cast<std::uint8_t>(
        std::clamp(static_cast<int>(std::round(v * share)), 0, 255));
  };
  const std::uint8_t p = rounded(1.0 - fs);
  const std::uint8_t q = rounded(1.0 - static_cast<double>(fs * f));
  const std::uint8_t t = rounded(1.0 - fs * (1.0 - f));
  const std::array<std::array<std::uint8_t, 3>, 6> sectors{
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::ranges::copy(sectors[static_cast<std::size_t>(sector % 6)], rgb);
}

}  // namespace

void apply(const Adjust& adjust, Image& image) {
  switch (adjust.property) {
    case ColorProperty::kBrightness:
      return blend_all(0, adjust.factor, image);
    case ColorProperty::kContrast:
      return blend_all(mean_gray(image), adjust.factor, image);
    case ColorProperty::kSaturation:
      for_each_rgb(image, [factor = adjust.factor](std::uint8_t* rgb) {
        const std::uint8_t gray = gray_of(rgb);
        for (int channel = 0; channel < kRgb; ++channel)
          rgb[channel] = blend(gray, rgb[channel], factor);
      });
  }
}

void apply(const ShiftHue& shift, Image& image) {
  for_each_rgb(image, [steps = shift.steps](std::uint8_t* rgb) {
    Hsv hsv = to_hsv(rgb);
    hsv.hue = static_cast<std::uint8_t>(hsv.hue + steps);
    to_rgb(hsv, rgb);
  });
}

void apply(const ToGray&, Image& image) {
  for_each_rgb(image,
               [](std::uint8_t* rgb) { std::fill_n(rgb, kRgb, gray_of(rgb)); });
}

}  // namespace lockstep::transforms
