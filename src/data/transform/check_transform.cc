#include "src/data/transform/check_transform.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <string>

#include "lockstep/base/error.h"
#include "src/data/transform/draw.h"
#include "src/data/transform/operation.h"

namespace lockstep::transforms {
namespace {

// Checks the arguments of one transform, whose name it says.
class Check {
 public:
  explicit Check(std::string_view name) : name_(name) {}

  void operator()(const Resize& resize) const {
    sides("size", resize.size);
    if (resize.max_size == 0) return;
    const auto* size = std::get_if<std::int64_t>(&resize.size);
    if (size == nullptr)
      fail("max_size", "given beside both sides",
           "a size of one number, for the shorter side");
    if (resize.max_size <= *size)
      fail("max_size", fmt::format("{}", resize.max_size),
           fmt::format("more than the size, {}", *size));
  }
  void operator()(const CenterCrop& crop) const { sides("size", crop.size); }
  void operator()(const RandomCrop& crop) const {
    sides("size", crop.size);
    for (const std::int64_t side : crop.padding) whole("padding", side, 0);
  }
  void operator()(const RandomResizedCrop& crop) const {
    sides("size", crop.size);
    range("scale", crop.scale, {0, 1});
    positive("scale", crop.scale.high);
    ratio(crop.ratio);
  }
  void operator()(const RandomHorizontalFlip& flip) const {
    share("p", flip.p);
  }
  void operator()(const RandomVerticalFlip& flip) const { share("p", flip.p); }
  void operator()(const RandomRotation& rotation) const {
    degrees("degrees", rotation.degrees);
    if (rotation.center) center(*rotation.center);
  }
  void operator()(const RandomAffine& affine) const {
    degrees("degrees", affine.degrees);
    for (const double translate : affine.translate)
      share("translate", translate);
    range("scale", affine.scale, {1 / kMost, kMost});
    shear("shear", affine.shear.x);
    shear("shear", affine.shear.y);
    if (affine.center) center(*affine.center);
  }
  void operator()(const ColorJitter& jitter) const {
    factor("brightness", jitter.brightness);
    factor("contrast", jitter.contrast);
    factor("saturation", jitter.saturation);
    number("hue", jitter.hue, {0, 0.5});
    range("hue", range_of(jitter.hue, 0), {-0.5, 0.5});
  }
  void operator()(const RandomGrayscale& gray) const { share("p", gray.p); }
  void operator()(const GaussianBlur& blur) const {
    sides("kernel_size", blur.kernel_size);
    const auto [height, width] = sides_of(blur.kernel_size);
    if (height % 2 == 0 || width % 2 == 0)
      fail("kernel_size", fmt::format("{} x {}", height, width),
           "odd numbers of pixels");
    range("sigma", blur.sigma, {0, kMost});
    // Weights are floats.
    positive("sigma", static_cast<float>(blur.sigma.low));
  }
  void operator()(const ToTensor&) const {}
  void operator()(const Normalize& normalize) const {
    channels("mean", normalize.mean);
    channels("std", normalize.standard_deviation);
    for (const float value : normalize.mean)
      if (!std::isfinite(value))
        fail("mean", fmt::format("{}", value), "a finite number");
    for (const float value : normalize.standard_deviation)
      if (!(value > 0) || std::isinf(value))
        fail("std", fmt::format("{}", value), "a positive number");
  }
  void operator()(const RandomErasing& erasing) const {
    share("p", erasing.p);
    range("scale", erasing.scale, {0, 1});
    ratio(erasing.ratio);
    const auto* value = std::get_if<std::array<float, 3>>(&erasing.value);
    for (std::size_t i = 0; value != nullptr && i < value->size(); ++i)
      if (!std::isfinite((*value)[i]))
        fail("value", fmt::format("{}", (*value)[i]), "a finite number");
  }

 private:
  static constexpr double kMost = 1e6;

  [[noreturn]] void fail(std::string_view argument, const std::string& found,
                         const std::string& expected) const {
    throw InvalidArgument(fmt::format("cannot use {}: {} is {}; expected {}",
                                      name_, argument, found, expected));
  }
  void whole(std::string_view argument, std::int64_t value,
             std::int64_t least) const {
    if (value < least || value > kMostPixelsOfASide)
      fail(argument, fmt::format("{}", value),
           fmt::format("{} to {} pixels", least, kMostPixelsOfASide));
  }
  void sides(std::string_view argument, const Sides& value) const {
    const auto [height, width] = sides_of(value);
    whole(argument, height, 1);
    whole(argument, width, 1);
  }
  // NaN is outside any range.
  void range(std::string_view argument, const Range& value,
             const Range& bounds) const {
    if (!(value.low >= bounds.low && value.low <= value.high &&
          value.high <= bounds.high))
      fail(argument, fmt::format("({}, {})", value.low, value.high),
           fmt::format("a lower and an upper bound within {} to {}", bounds.low,
                       bounds.high));
  }
  void positive(std::string_view argument, double value) const {
    if (!(value > 0)) fail(argument, fmt::format("{}", value), "more than 0");
  }
  void share(std::string_view argument, double value) const {
    if (!(value >= 0 && value <= 1))
      fail(argument, fmt::format("{}", value), "0 to 1");
  }
  // Of the forms of `value`, checks the single number.
  void number(std::string_view argument, const NumberOrRange& value,
              const Range& bounds) const {
    const auto* single = std::get_if<double>(&value);
    if (single != nullptr && std::isnan(*single))
      fail(argument, "missing", "a number, or a lower and an upper bound");
    if (single != nullptr && !(*single >= bounds.low && *single <= bounds.high))
      fail(argument, fmt::format("{}", *single),
           fmt::format("{} to {}", bounds.low, bounds.high));
  }
  void degrees(std::string_view argument, const NumberOrRange& value) const {
    number(argument, value, {0, kMost});
    range(argument, range_of(value, 0), {-kMost, kMost});
  }
  // The tangent of a right angle has no value.
  void shear(std::string_view argument, const NumberOrRange& value) const {
    number(argument, value, {0, 89});
    range(argument, range_of(value, 0), {-89, 89});
  }
  void factor(std::string_view argument, const NumberOrRange& value) const {
    number(argument, value, {0, kMost});
    range(argument, range_of(value, 1), {0, kMost + 1});
  }
  void ratio(const Range& value) const {
    range("ratio", value, {0, kMost});
    positive("ratio", value.low);
  }
  void center(const Center& value) const {
    if (!(std::abs(value.x) <= kMost && std::abs(value.y) <= kMost))
      fail("center", fmt::format("({}, {})", value.x, value.y),
           fmt::format("coordinates within -{} to {}", kMost, kMost));
  }
  void channels(std::string_view argument,
                const std::vector<float>& values) const {
    if (values.size() != 1 && values.size() != 3)
      fail(argument, fmt::format("a list of {}", values.size()),
           "one number, or one for each of three channels");
  }

  std::string_view name_;
};

}  // namespace

std::string_view name_of(const Transform& transform) {
  // In the order of the variant.
  constexpr std::string_view kNames[] = {"resize",
                                         "center_crop",
                                         "random_crop",
                                         "random_resized_crop",
                                         "random_horizontal_flip",
                                         "random_vertical_flip",
                                         "random_rotation",
                                         "random_affine",
                                         "color_jitter",
                                         "random_grayscale",
                                         "gaussian_blur",
                                         "to_tensor",
                                         "normalize",
                                         "random_erasing"};
  static_assert(std::size(kNames) == std::variant_size_v<Transform>);
  return kNames[transform.index()];
}

bool takes_numbers(const Transform& transform) {
  return std::holds_alternative<Normalize>(transform) ||
         std::holds_alternative<RandomErasing>(transform);
}

void check(const Transform& transform) {
  std::visit(Check(name_of(transform)), transform);
}

void check_order(std::span<const Transform> transforms) {
  std::string_view first_of_numbers;
  for (const Transform& transform : transforms) {
    const bool to_tensor = std::holds_alternative<ToTensor>(transform);
    if (!first_of_numbers.empty() && !takes_numbers(transform))
      throw InvalidArgument(fmt::format(
          "cannot use {} after {}: it changes pixels, which are floats by "
          "then\n"
          "  next:    move {} before {}",
          name_of(transform), first_of_numbers, name_of(transform),
          first_of_numbers));
    if (to_tensor || takes_numbers(transform))
      first_of_numbers = name_of(transform);
  }
}

}  // namespace lockstep::transforms
