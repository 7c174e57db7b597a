// Well-formed CIFAR files for the tests of this layer.
#pragma once

#include <cstdint>
#include <vector>

#include "src/data/cifar.h"

namespace lockstep {

// A file whose images have these bytes of labels; the pixels of the image
// number i are all i + 1.
inline std::vector<std::uint8_t> cifar_file(
    const std::vector<std::vector<std::uint8_t>>& labels) {
  std::vector<std::uint8_t> bytes;
  std::uint8_t pixel = 0;
  for (const auto& label : labels) {
    bytes.insert(bytes.end(), label.begin(), label.end());
    bytes.insert(bytes.end(), kCifarPixels, ++pixel);
  }
  return bytes;
}

}  // namespace lockstep
