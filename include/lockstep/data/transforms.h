// Random and fixed changes of images before a model sees them, with the names,
// arguments, defaults and meaning of torchvision.transforms on PIL images.
//
//   const Compose augment(
//       "random_resized_crop(224) | hflip | normalize(imagenet)");
//   augment.apply(image, {.seed = 1, .epoch = 3, .index = 17}, numbers);
//
// In code the same is Compose({RandomResizedCrop{.size = 224},
// RandomHorizontalFlip{}, imagenet_normalize()}).
//
// Pixels change as 8-bit numbers, bit for bit as PIL changes them but where
// docs/guides/transforms.md states a difference, until ToTensor makes them
// floats. ToTensor is implied before the first transform of floats, and at the
// end.
//
// Threads: a Compose is immutable; threads share it freely.
// Errors:  InvalidArgument for arguments out of range, for a text that does not
//          parse, for transforms in an order that does not exist, and for an
//          image that is too small; the message names the transform.
// Source:  torchvision 0.28 and Pillow 13.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// How a pixel is made of its neighbours. Resizing to a smaller image with
// kBilinear and kBicubic averages over all pixels that an output pixel covers,
// as PIL does.
enum class Interpolation { kNearest, kBilinear, kBicubic };

// What lies outside an image that a crop extends. kReflect does not repeat the
// outermost pixel, kSymmetric does.
enum class PaddingMode { kConstant, kEdge, kReflect, kSymmetric };

struct Range {
  double low = 0;
  double high = 0;

  friend bool operator==(const Range&, const Range&) = default;
};

// The value of an argument that a caller must give.
inline constexpr double kNotGiven = std::numeric_limits<double>::quiet_NaN();

// A number d stands for the range -d … d, or for 1 - d … 1 + d where 1 is
// neutral; a Range stands for itself.
using NumberOrRange = std::variant<double, Range>;

// A number is both sides, and for Resize the shorter one.
using Sides = std::variant<std::int64_t, ImageSize>;

// Red, green and blue; grey images take the first.
using Fill = std::array<std::uint8_t, 3>;

// The larger side keeps the ratio where `size` is a number; `max_size` then
// bounds it; 0 does not.
struct Resize {
  Sides size{};
  Interpolation interpolation = Interpolation::kBilinear;
  std::int64_t max_size = 0;
};

// Black pixels surround an image that is smaller.
struct CenterCrop {
  Sides size{};
};

// `padding`: left, top, right and bottom.
struct RandomCrop {
  Sides size{};
  std::array<std::int64_t, 4> padding{};
  bool pad_if_needed = false;
  Fill fill{};
  PaddingMode padding_mode = PaddingMode::kConstant;
};

// A crop of a random share `scale` of the area and a random `ratio` of width to
// height, resized.
struct RandomResizedCrop {
  Sides size{};
  Range scale{0.08, 1.0};
  Range ratio{3.0 / 4.0, 4.0 / 3.0};
  Interpolation interpolation = Interpolation::kBilinear;
};

struct RandomHorizontalFlip {
  double p = 0.5;
};

struct RandomVerticalFlip {
  double p = 0.5;
};

// The point that stays where it is, in pixels from the upper left corner;
// without a value the centre of the image.
struct Center {
  double x = 0;
  double y = 0;
};

// Degrees count counter-clockwise. With `expand`, the output holds the whole
// rotated image.
struct RandomRotation {
  NumberOrRange degrees = kNotGiven;
  Interpolation interpolation = Interpolation::kNearest;
  bool expand = false;
  std::optional<Center> center{};
  Fill fill{};
};

// Degrees.
struct Shear {
  NumberOrRange x = 0.0;
  NumberOrRange y = 0.0;
};

// Degrees count clockwise, as torchvision's do here. `translate`: the largest
// shift as shares of width and height.
struct RandomAffine {
  NumberOrRange degrees = kNotGiven;
  std::array<double, 2> translate{};
  Range scale{1, 1};
  Shear shear{};
  Interpolation interpolation = Interpolation::kNearest;
  Fill fill{};
  std::optional<Center> center{};
};

// Applies the four in a random order. `hue` is within -0.5 … 0.5.
struct ColorJitter {
  NumberOrRange brightness = 0.0;
  NumberOrRange contrast = 0.0;
  NumberOrRange saturation = 0.0;
  NumberOrRange hue = 0.0;
};

// The channels stay three, of equal values.
struct RandomGrayscale {
  double p = 0.1;
};

// `kernel_size`: odd numbers of pixels. As text a pair of them is (width,
// height), unlike other sizes, because torchvision's is.
struct GaussianBlur {
  Sides kernel_size{};
  Range sigma{0.1, 2.0};
};

// Pixels become floats, 0 … 1.
struct ToTensor {};

// (number - mean) / standard deviation, per channel; one value serves all
// channels.
struct Normalize {
  std::vector<float> mean{};
  std::vector<float> standard_deviation{};
};

// Numbers of the standard normal distribution, one for each number erased.
struct Noise {};

// Overwrites a random rectangle of a random share `scale` of the area with
// `value`, one per channel. `ratio` is height to width.
struct RandomErasing {
  double p = 0.5;
  Range scale{0.02, 0.33};
  Range ratio{0.3, 3.3};
  std::variant<std::array<float, 3>, Noise> value{};
};

using Transform =
    std::variant<Resize, CenterCrop, RandomCrop, RandomResizedCrop,
                 RandomHorizontalFlip, RandomVerticalFlip, RandomRotation,
                 RandomAffine, ColorJitter, RandomGrayscale, GaussianBlur,
                 ToTensor, Normalize, RandomErasing>;

// Mean and standard deviation of ImageNet, as torchvision's models take them.
Normalize imagenet_normalize();

// What the random numbers of one image depend on, and nothing else.
struct SampleKey {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;
};

class Compose {
 public:
  explicit Compose(std::vector<Transform> transforms);

  // Transforms in order, separated by "|", with torchvision's names in lower
  // case, positional and named arguments as in Python:
  //
  //   resize(256) | center_crop(224) | color_jitter(0.4, hue=0.1)
  //   random_crop(32, padding=4) | hflip | normalize((0.5,), (0.25,))
  //
  // hflip and vflip are short for the flips. docs/guides/transforms.md has the
  // grammar.
  explicit Compose(std::string_view text);

  const std::vector<Transform>& transforms() const { return transforms_; }

  // A text that makes the same transforms.
  std::string text() const;

  // The size of every output, where it does not depend on the input.
  std::optional<ImageSize> output_size() const;

  // Returns the image as it is before ToTensor; what follows is left out. Draws
  // the same random numbers as apply().
  Image apply_to_pixels(const Image& image, const SampleKey& key) const;

  // Writes channels x height x width floats to `numbers`, resized to fit, and
  // returns height and width.
  ImageSize apply(const Image& image, const SampleKey& key,
                  std::vector<float>& numbers) const;

 private:
  std::vector<Transform> transforms_;
};

}  // namespace lockstep
