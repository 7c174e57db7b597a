#include "src/data/transform/numbers.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "src/data/sample_random.h"

namespace lockstep::transforms {
namespace {

// Normally distributed, by Box and Muller, "A note on the generation of random
// normal deviates", 1958.
float normal(SampleRandom& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform(0, 1)));
  return static_cast<float>(
      radius * std::cos(2.0 * std::numbers::pi * random.uniform(0, 1)));
}

// Calls `change(channel, numbers of the channel)`.
template <class Change>
void for_each_channel(const ImageSize& size, std::span<float> numbers,
                      const Change& change) {
  const auto area = static_cast<std::size_t>(size.height * size.width);
  for (std::size_t channel = 0; channel * area < numbers.size(); ++channel)
    change(channel, numbers.subspan(channel * area, area));
}

void normalize(const NormalizeBy& by, std::size_t channel,
               std::span<float> numbers) {
  for (float& number : numbers)
    number = (number - by.mean[channel]) / by.standard_deviation[channel];
}

template <std::size_t kChannels>
void look_up_all(const NumberTables& tables, const Image& image,
                 float* numbers) {
  const auto area =
      static_cast<std::size_t>(image.size.height * image.size.width);
  const std::uint8_t* from = image.pixels.data();
  for (std::size_t i = 0; i < area; ++i)
    for (std::size_t channel = 0; channel < kChannels; ++channel)
      numbers[channel * area + i] = tables[channel][*from++];
}

}  // namespace

void apply(const ToFloat&, NumberTables& tables) {
  for (std::array<float, 256>& table : tables)
    for (std::size_t i = 0; i < table.size(); ++i)
      table[i] = static_cast<float>(i) / 255.0f;
}

void apply(const NormalizeBy& by, NumberTables& tables) {
  for (std::size_t channel = 0; channel < tables.size(); ++channel)
    normalize(by, channel, tables[channel]);
}

void apply(const NormalizeBy& by, const ImageSize& size,
           std::span<float> numbers) {
  for_each_channel(size, numbers,
                   [&](std::size_t channel, std::span<float> out) {
                     normalize(by, channel, out);
                   });
}

void look_up(const NumberTables& tables, const Image& image,
             std::span<float> numbers) {
  (image.channels == 3 ? look_up_all<3> : look_up_all<1>)(tables, image,
                                                          numbers.data());
}

void apply(const Erase& erase, const ImageSize& size,
           std::span<float> numbers) {
  SampleRandom random(erase.noise_seed, 0, 0);
  const ImageRegion& region = erase.region;
  for_each_channel(
      size, numbers, [&](std::size_t channel, std::span<float> out) {
        for (std::int64_t y = 0; y < region.size.height; ++y) {
          float* row = out.data() + (region.top + y) * size.width + region.left;
          for (std::int64_t x = 0; x < region.size.width; ++x)
            row[x] = erase.noise ? normal(random) : erase.value[channel];
        }
      });
}

}  // namespace lockstep::transforms
