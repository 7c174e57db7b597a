// Rows of decoded pixels, as the caller wants them.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace lockstep {

// PIL's weights of red, green and blue, in 1 / 65536: those of ITU-R BT.601.
inline std::uint8_t gray_of(const std::uint8_t* rgb) {
  constexpr std::uint32_t kHalf = 1U << 15;
  return static_cast<std::uint8_t>(
      (19595U * rgb[0] + 38470U * rgb[1] + 7471U * rgb[2] + kHalf) >> 16);
}

// How a decoder's row becomes one of an Image.
struct RowForm {
  std::size_t decoded_channels = 3;
  std::size_t channels = 3;  // 1 where 3 are decoded: grey of them
};

// Copies `count` pixels.
inline void copy_pixels(const RowForm& form, const std::uint8_t* decoded,
                        std::size_t count, std::uint8_t* out) {
  if (form.decoded_channels == form.channels)
    std::copy_n(decoded, count * form.channels, out);
  else
    for (std::size_t i = 0; i < count; ++i) out[i] = gray_of(decoded + 3 * i);
}

}  // namespace lockstep
