// A small dataset that any classifier learns within seconds: each class is a
// bright stripe at its own height, in noise.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// `side` is at least 24, which is where the lowest stripe ends.
inline ImageDataset striped_images(std::int64_t count, std::uint32_t seed,
                                   int side = 28) {
  constexpr int kClasses = 10;
  ImageDataset dataset{.title = "Stripes",
                       .count = count,
                       .channels = 1,
                       .height = side,
                       .width = side,
                       .images = {},
                       .labels = {},
                       .class_names = std::vector<std::string>(kClasses, "row"),
                       .mean = {0.3f},
                       .standard_deviation = {0.3f}};
  std::mt19937 random(seed);
  for (std::int64_t i = 0; i < count; ++i) {
    const int label = static_cast<int>(random() % kClasses);
    dataset.labels.push_back(label);
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x) {
        const unsigned stripe = y / 2 == label + 2 ? 150 : 0;
        dataset.images.push_back(
            static_cast<std::uint8_t>(stripe + random() % 100));
      }
  }
  return dataset;
}

}  // namespace lockstep
