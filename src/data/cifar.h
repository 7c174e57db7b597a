// Reads the binary files of CIFAR-10 and CIFAR-100: see docs/formats/cifar.md.
//
// Threads: any thread.
// Errors:  InvalidArgument with file, offset, expected and found for malformed
//          contents.
// Source:  https://www.cs.toronto.edu/~kriz/cifar.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// 32 x 32 pixels of three channels.
inline constexpr std::size_t kCifarSide = 32;
inline constexpr std::size_t kCifarPixels = 3 * kCifarSide * kCifarSide;

// What precedes the pixels of each image.
struct CifarLabels {
  std::size_t bytes = 1;  // the last one is the class
  std::size_t classes = 10;
};

struct CifarImages {
  std::vector<std::uint8_t> pixels{};  // images x channels x height x width
  std::vector<std::int64_t> labels{};
};

// Decodes the contents of a file, at least one image, and appends them to
// `images`. `file` names it in messages.
void append_cifar(std::span<const std::byte> contents, const CifarLabels& form,
                  const std::string& file, CifarImages& images);

}  // namespace lockstep
