// Rows of decoded pixels, as the caller wants them.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// PIL's weights of red, green and blue, in 1 / 65536: those of ITU-R BT.601.
inline std::uint8_t gray_of(const std::uint8_t* rgb) {
  constexpr std::uint32_t kHalf = 1U << 15;
  return static_cast<std::uint8_t>(
      (19595U * rgb[0] + 38470U * rgb[1] + 7471U * rgb[2] + kHalf) >> 16);
}

// Red, green and blue of four inks, as in PIL's convert("RGB"). `stored` has
// what a file has: 255 minus cyan, magenta, yellow and black.
inline std::array<std::uint8_t, 3> rgb_of_inks(const std::uint8_t* stored) {
  const std::uint32_t white = stored[3];
  std::array<std::uint8_t, 3> rgb{};
  for (std::size_t i = 0; i < rgb.size(); ++i) {
    // The product / 255, rounded.
    const std::uint32_t product = (255U - stored[i]) * white + 128U;
    rgb[i] =
        static_cast<std::uint8_t>(white - (((product >> 8) + product) >> 8));
  }
  return rgb;
}

// How a decoder's row becomes one of an Image.
struct RowForm {
  std::size_t decoded_channels = 3;  // 4: inks, as rgb_of_inks() takes them
  std::size_t channels = 3;          // 1 where 3 or 4 are decoded: grey of them
};

// Copies `count` pixels.
inline void copy_pixels(const RowForm& form, const std::uint8_t* decoded,
                        std::size_t count, std::uint8_t* out) {
  if (form.decoded_channels == form.channels)
    std::copy_n(decoded, count * form.channels, out);
  else if (form.decoded_channels == 4)
    for (std::size_t i = 0; i < count; ++i, out += form.channels) {
      const auto rgb = rgb_of_inks(decoded + 4 * i);
      if (form.channels == 1)
        *out = gray_of(rgb.data());
      else
        std::copy(rgb.begin(), rgb.end(), out);
    }
  else
    for (std::size_t i = 0; i < count; ++i) out[i] = gray_of(decoded + 3 * i);
}

}  // namespace lockstep
