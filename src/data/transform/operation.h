// What happens to one image: a transform whose random numbers are drawn.
//
// draw.h makes operations of transforms; the other files of this folder each
// carry some of them out. An operation is a few numbers, so that a list of them
// is copied, compared and planned without memory of its own.
//
// Threads: values.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "lockstep/data/transforms.h"
#include "src/data/image/image_reader.h"

namespace lockstep::transforms {

// `sides`: left, top, right and bottom, in pixels.
struct Pad {
  std::array<std::int64_t, 4> sides{};
  Fill fill{};
  PaddingMode mode = PaddingMode::kConstant;
};

// `region` lies inside the image.
struct Crop {
  ImageRegion region{};
};

// A resize along one side, of which only a part is computed. Input pixels are
// counted on from any one; pixel i covers i … i + 1.
struct ResizeSide {
  double begin = 0;  // of the input that the whole output covers
  double end = 0;
  std::int64_t out = 0;     // pixels of the whole output
  std::int64_t first = 0;   // the first pixel of it that is computed
  std::int64_t count = 0;   // how many are
  std::int64_t offset = 0;  // the first input pixel that the image has
};

struct ResizeTo {
  ImageSize size{};
  Interpolation interpolation = Interpolation::kBilinear;
  // Vertical and horizontal; empty: the whole output, from the whole image.
  std::optional<std::array<ResizeSide, 2>> sides{};
};

enum class Axis { kHorizontal, kVertical };

// Exchanges left and right, or top and bottom.
struct Mirror {
  Axis axis = Axis::kHorizontal;
};

// Turns by 90 degrees counter-clockwise, 1 to 3 times.
struct Turn {
  int quarters = 1;
};

// The output pixel at (x, y) is what the input has at (m[0] x + m[1] y + m[2],
// m[3] x + m[4] y + m[5]), where pixels are unit squares; `fill` outside it.
struct MapAffine {
  std::array<double, 6> matrix{};
  ImageSize size{};
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill{};
};

enum class ColorProperty { kBrightness, kContrast, kSaturation };

// Factor 0 takes the property away, 1 changes nothing.
struct Adjust {
  ColorProperty property = ColorProperty::kBrightness;
  float factor = 1;
};

// Adds to the hue, whose circle has 256 steps.
struct ShiftHue {
  std::uint8_t steps = 0;
};

struct ToGray {};

// Sizes in pixels, odd.
struct Blur {
  ImageSize kernel{};
  double sigma = 0;
};

struct ToFloat {};

// For images of `channels`, 1 or 3; 0: of either, by the first values.
struct NormalizeBy {
  std::int64_t channels = 0;
  std::array<float, 3> mean{};
  std::array<float, 3> standard_deviation{};
};

struct Erase {
  ImageRegion region{};
  std::array<float, 3> value{};
  bool noise = false;
  std::uint64_t noise_seed = 0;
};

using Operation =
    std::variant<Pad, Crop, ResizeTo, Mirror, Turn, MapAffine, Adjust, ShiftHue,
                 ToGray, Blur, ToFloat, NormalizeBy, Erase>;

}  // namespace lockstep::transforms
