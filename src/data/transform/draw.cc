// The names of variables follow the formulas of the source, so that one can be
// held against the other. Rounding is Python's: halves go to the even number,
// as std::nearbyint() does in its default mode.
#include "src/data/transform/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/transform/check_transform.h"
#include "src/data/transform/matrix.h"

namespace lockstep::transforms {
namespace {

// What draws and where it goes; one overload per transform returns the size
// after it.
class Drawing {
 public:
  Drawing(const ImageSize& size, SampleRandom& random,
          std::vector<Operation>& operations)
      : size_(size), random_(random), operations_(operations) {}

  ImageSize operator()(const Resize& resize);
  ImageSize operator()(const CenterCrop& crop);
  ImageSize operator()(const RandomCrop& crop);
  ImageSize operator()(const RandomResizedCrop& crop);
  ImageSize operator()(const RandomHorizontalFlip& flip);
  ImageSize operator()(const RandomVerticalFlip& flip);
  ImageSize operator()(const RandomRotation& rotation);
  ImageSize operator()(const RandomAffine& affine);
  ImageSize operator()(const ColorJitter& jitter);
  ImageSize operator()(const RandomGrayscale& gray);
  ImageSize operator()(const GaussianBlur& blur);
  ImageSize operator()(const ToTensor& to_tensor);
  ImageSize operator()(const Normalize& normalize);
  ImageSize operator()(const RandomErasing& erasing);

 private:
  double uniform(const Range& range) {
    return random_.uniform(range.low, range.high);
  }
  // Uniform in 0 … end.
  std::int64_t up_to(std::int64_t end) {
    return random_.below(static_cast<std::uint32_t>(end + 1));
  }
  void pad(const std::array<std::int64_t, 4>& sides, const Fill& fill,
           PaddingMode mode);
  void crop_to(const ImageRegion& region);
  void resize_to(const ImageSize& size, Interpolation interpolation);
  // A region of a random share of the area and a random ratio, none after ten
  // trials that were larger than the image. `ratio` is width to height.
  std::optional<ImageSize> random_part(const Range& scale, const Range& ratio);
  ImageRegion place(const ImageSize& part);
  ImageSize finish(const Operation& operation) {
    operations_.push_back(operation);
    return size_;
  }

  ImageSize size_;
  SampleRandom& random_;
  std::vector<Operation>& operations_;
};

std::int64_t rounded(double value) {
  return static_cast<std::int64_t>(std::nearbyint(value));
}

// A thin image becomes a huge one when its shorter side is resized, and padding
// or a rotation that expands may make one of any.
void check_intermediate(const ImageSize& size) {
  constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;
  if (size.height * size.width > kMostPixels)
    throw InvalidArgument(
        fmt::format("cannot make an image of {} x {} pixels on the way: at "
                    "most {} pixels\n"
                    "  next:    crop the image first, or resize both sides",
                    size.height, size.width, kMostPixels));
}

void Drawing::pad(const std::array<std::int64_t, 4>& sides, const Fill& fill,
                  PaddingMode mode) {
  if (sides == std::array<std::int64_t, 4>{}) return;
  const auto [left, top, right, bottom] = sides;
  // The mirror image of one row is as many rows as the image has, less the
  // outermost one where that is not repeated.
  const std::int64_t repeated = mode == PaddingMode::kReflect ? 1 : 0;
  if ((mode == PaddingMode::kReflect || mode == PaddingMode::kSymmetric) &&
      (std::max(left, right) > size_.width - repeated ||
       std::max(top, bottom) > size_.height - repeated))
    throw InvalidArgument(
        fmt::format("cannot pad an image of {} x {} by its mirror image: the "
                    "padding (left {}, top {}, right {}, bottom {}) is larger\n"
                    "  next:    pad with padding_mode=constant or edge",
                    size_.height, size_.width, left, top, right, bottom));
  operations_.push_back(Pad{.sides = sides, .fill = fill, .mode = mode});
  size_ = {size_.height + top + bottom, size_.width + left + right};
  check_intermediate(size_);
}

void Drawing::crop_to(const ImageRegion& region) {
  if (region.size == size_) return;
  operations_.push_back(Crop{region});
  size_ = region.size;
}

void Drawing::resize_to(const ImageSize& size, Interpolation interpolation) {
  if (size == size_) return;
  check_intermediate(size);
  operations_.push_back(ResizeTo{size, interpolation});
  size_ = size;
}

ImageRegion Drawing::place(const ImageSize& part) {
  const std::int64_t top = up_to(size_.height - part.height);
  const std::int64_t left = up_to(size_.width - part.width);
  return {.top = top, .left = left, .size = part};
}

std::optional<ImageSize> Drawing::random_part(const Range& scale,
                                              const Range& ratio) {
  const double area = static_cast<double>(size_.height * size_.width);
  for (int trial = 0; trial < 10; ++trial) {
    const double target_area = area * uniform(scale);
    const double aspect_ratio =
        std::exp(uniform({std::log(ratio.low), std::log(ratio.high)}));
    const std::int64_t w = rounded(std::sqrt(target_area * aspect_ratio));
    const std::int64_t h = rounded(std::sqrt(target_area / aspect_ratio));
    if (0 < w && w <= size_.width && 0 < h && h <= size_.height)
      return ImageSize{h, w};
  }
  return std::nullopt;
}

ImageSize Drawing::operator()(const Resize& resize) {
  if (const auto* both = std::get_if<ImageSize>(&resize.size)) {
    resize_to(*both, resize.interpolation);
    return size_;
  }
  const std::int64_t size = std::get<std::int64_t>(resize.size);
  const auto [shorter, longer] = std::minmax(size_.height, size_.width);
  std::int64_t new_short = size;
  std::int64_t new_long = size * longer / shorter;
  if (resize.max_size > 0 && new_long > resize.max_size) {
    new_short = resize.max_size * new_short / new_long;
    new_long = resize.max_size;
  }
  if (new_short < 1)
    throw InvalidArgument(fmt::format(
        "cannot resize an image of {} x {}: with max_size={} no pixel is left "
        "of its shorter side\n"
        "  next:    give a larger max_size, or leave it out",
        size_.height, size_.width, resize.max_size));
  resize_to(size_.width <= size_.height ? ImageSize{new_long, new_short}
                                        : ImageSize{new_short, new_long},
            resize.interpolation);
  return size_;
}

ImageSize Drawing::operator()(const CenterCrop& crop) {
  const auto [h, w] = sides_of(crop.size);
  const std::int64_t wide = std::max<std::int64_t>(0, w - size_.width);
  const std::int64_t high = std::max<std::int64_t>(0, h - size_.height);
  pad({wide / 2, high / 2, (wide + 1) / 2, (high + 1) / 2}, {},
      PaddingMode::kConstant);
  const auto middle = [](std::int64_t rest) {
    return rounded(static_cast<double>(rest) / 2.0);
  };
  crop_to({middle(size_.height - h), middle(size_.width - w), {h, w}});
  return size_;
}

ImageSize Drawing::operator()(const RandomCrop& crop) {
  const ImageSize part = sides_of(crop.size);
  pad(crop.padding, crop.fill, crop.padding_mode);
  if (crop.pad_if_needed) {
    const std::int64_t wide =
        std::max<std::int64_t>(0, part.width - size_.width);
    const std::int64_t high =
        std::max<std::int64_t>(0, part.height - size_.height);
    pad({wide, high, wide, high}, crop.fill, crop.padding_mode);
  }
  if (part.height > size_.height || part.width > size_.width)
    throw InvalidArgument(
        fmt::format("cannot crop {} x {} pixels out of an image of {} x {}\n"
                    "  next:    resize it first, or set pad_if_needed",
                    part.height, part.width, size_.height, size_.width));
  crop_to(place(part));
  return size_;
}

ImageSize Drawing::operator()(const RandomResizedCrop& crop) {
  std::optional<ImageSize> part = random_part(crop.scale, crop.ratio);
  if (part) {
    crop_to(place(*part));
  } else {
    const auto [height, width] = size_;
    const double in_ratio =
        static_cast<double>(width) / static_cast<double>(height);
    part = size_;
    if (in_ratio < crop.ratio.low)
      part->height = rounded(static_cast<double>(width) / crop.ratio.low);
    else if (in_ratio > crop.ratio.high)
      part->width = rounded(static_cast<double>(height) * crop.ratio.high);
    if (part->height < 1 || part->width < 1)
      throw InvalidArgument(fmt::format(
          "cannot crop an image of {} x {} to a ratio of {} to {}: no pixel is "
          "left\n"
          "  next:    give a ratio nearer to 1, or resize the image first",
          height, width, crop.ratio.low, crop.ratio.high));
    crop_to({(height - part->height) / 2, (width - part->width) / 2, *part});
  }
  resize_to(sides_of(crop.size), crop.interpolation);
  return size_;
}

ImageSize Drawing::operator()(const RandomHorizontalFlip& flip) {
  if (random_.uniform(0, 1) < flip.p)
    operations_.push_back(Mirror{Axis::kHorizontal});
  return size_;
}

ImageSize Drawing::operator()(const RandomVerticalFlip& flip) {
  if (random_.uniform(0, 1) < flip.p)
    operations_.push_back(Mirror{Axis::kVertical});
  return size_;
}

ImageSize Drawing::operator()(const RandomRotation& rotation) {
  double degrees = std::fmod(uniform(range_of(rotation.degrees, 0)), 360.0);
  if (degrees < 0) degrees += 360.0;
  if (!rotation.center) {
    if (degrees == 0) return size_;
    if (degrees == 180) return finish(Turn{2});
    const bool fits = rotation.expand || size_.height == size_.width;
    if ((degrees == 90 || degrees == 270) && fits) {
      size_ = {size_.width, size_.height};
      return finish(Turn{degrees == 90 ? 1 : 3});
    }
  }
  const Matrix matrix = rotation_matrix(degrees, rotation, size_);
  check_intermediate(size_);
  return finish(MapAffine{.matrix = matrix,
                          .size = size_,
                          .interpolation = rotation.interpolation,
                          .fill = rotation.fill});
}

ImageSize Drawing::operator()(const RandomAffine& affine) {
  const auto w = static_cast<double>(size_.width);
  const auto h = static_cast<double>(size_.height);
  AffineParameters drawn;
  drawn.angle = uniform(range_of(affine.degrees, 0));
  const std::array<double, 2> most{affine.translate[0] * w,
                                   affine.translate[1] * h};
  for (std::size_t i = 0; i < 2; ++i)
    drawn.translate[i] = std::nearbyint(uniform({-most[i], most[i]}));
  drawn.scale = uniform(affine.scale);
  drawn.shear = {uniform(range_of(affine.shear.x, 0)),
                 uniform(range_of(affine.shear.y, 0))};
  const Center center = affine.center.value_or(Center{w * 0.5, h * 0.5});
  return finish(MapAffine{.matrix = affine_matrix(drawn, center),
                          .size = size_,
                          .interpolation = affine.interpolation,
                          .fill = affine.fill});
}

ImageSize Drawing::operator()(const ColorJitter& jitter) {
  std::array<int, 4> order{0, 1, 2, 3};
  for (std::size_t i = 0; i < 3; ++i)
    std::swap(order[i], order[i + static_cast<std::size_t>(up_to(
                                      3 - static_cast<std::int64_t>(i)))]);
  const std::array<Range, 4> ranges{
      range_of(jitter.brightness, 1), range_of(jitter.contrast, 1),
      range_of(jitter.saturation, 1), range_of(jitter.hue, 0)};
  std::array<double, 4> factors{};
  for (std::size_t i = 0; i < 4; ++i) factors[i] = uniform(ranges[i]);
  for (const int which : order) {
    const auto i = static_cast<std::size_t>(which);
    const double neutral = which == 3 ? 0 : 1;
    if (ranges[i] == Range{neutral, neutral}) continue;
    if (which == 3)
      operations_.push_back(ShiftHue{static_cast<std::uint8_t>(
          static_cast<std::int64_t>(factors[i] * 255.0))});
    else
      operations_.push_back(Adjust{.property = ColorProperty{which},
                                   .factor = static_cast<float>(factors[i])});
  }
  return size_;
}

ImageSize Drawing::operator()(const RandomGrayscale& gray) {
  if (random_.uniform(0, 1) < gray.p) operations_.push_back(ToGray{});
  return size_;
}

ImageSize Drawing::operator()(const GaussianBlur& blur) {
  const ImageSize kernel = sides_of(blur.kernel_size);
  if (kernel.height / 2 >= size_.height || kernel.width / 2 >= size_.width)
    throw InvalidArgument(
        fmt::format("cannot blur an image of {} x {} with a kernel of {} x {}: "
                    "half of the kernel must be smaller than the image\n"
                    "  next:    give a smaller kernel_size, or resize the "
                    "image first",
                    size_.height, size_.width, kernel.height, kernel.width));
  return finish(Blur{.kernel = kernel, .sigma = uniform(blur.sigma)});
}

ImageSize Drawing::operator()(const ToTensor&) { return finish(ToFloat{}); }

ImageSize Drawing::operator()(const Normalize& normalize) {
  return finish(normalize_by(normalize));
}

ImageSize Drawing::operator()(const RandomErasing& erasing) {
  const bool wanted = random_.uniform(0, 1) < erasing.p;
  // Here the ratio is height to width.
  const double area = static_cast<double>(size_.height * size_.width);
  for (int trial = 0; wanted && trial < 10; ++trial) {
    const double erase_area = area * uniform(erasing.scale);
    const double aspect_ratio = std::exp(
        uniform({std::log(erasing.ratio.low), std::log(erasing.ratio.high)}));
    const std::int64_t h = rounded(std::sqrt(erase_area * aspect_ratio));
    const std::int64_t w = rounded(std::sqrt(erase_area / aspect_ratio));
    if (h >= size_.height || w >= size_.width) continue;
    Erase erase{.region = place({h, w}), .noise_seed = random_.next()};
    if (const auto* value = std::get_if<std::array<float, 3>>(&erasing.value))
      erase.value = *value;
    else
      erase.noise = true;
    return finish(erase);
  }
  return size_;
}

}  // namespace

void draw_all(std::span<const Transform> transforms, ImageSize size,
              const SampleKey& key, std::vector<Operation>& operations) {
  SampleRandom random(key.seed, key.epoch, key.index);
  operations.clear();
  bool are_numbers = false;
  for (const Transform& transform : transforms) {
    if (!are_numbers && takes_numbers(transform))
      operations.push_back(ToFloat{});
    are_numbers = are_numbers || takes_numbers(transform) ||
                  std::holds_alternative<ToTensor>(transform);
    size = draw(transform, size, random, operations);
  }
  if (!are_numbers) operations.push_back(ToFloat{});
}

ImageSize draw(const Transform& transform, const ImageSize& size,
               SampleRandom& random, std::vector<Operation>& operations) {
  return std::visit(Drawing(size, random, operations), transform);
}

std::optional<ImageSize> size_after(const Transform& transform,
                                    const std::optional<ImageSize>& size) {
  if (const auto* crop = std::get_if<CenterCrop>(&transform))
    return sides_of(crop->size);
  if (const auto* crop = std::get_if<RandomCrop>(&transform))
    return sides_of(crop->size);
  if (const auto* crop = std::get_if<RandomResizedCrop>(&transform))
    return sides_of(crop->size);
  const auto* resize = std::get_if<Resize>(&transform);
  if (resize != nullptr && std::holds_alternative<ImageSize>(resize->size))
    return sides_of(resize->size);
  const auto* rotation = std::get_if<RandomRotation>(&transform);
  if (!size || (rotation != nullptr && rotation->expand)) return std::nullopt;
  if (resize == nullptr) return size;
  SampleRandom unused(0, 0, 0);  // resizing is not random
  std::vector<Operation> operations;
  return draw(transform, *size, unused, operations);
}

NormalizeBy normalize_by(const Normalize& normalize) {
  const auto of_channel = [](const std::vector<float>& values, std::size_t i) {
    return values.size() == 1 ? values[0] : values[i];
  };
  NormalizeBy by;
  if (normalize.mean.size() == 3 || normalize.standard_deviation.size() == 3)
    by.channels = 3;
  for (std::size_t i = 0; i < 3; ++i) {
    by.mean[i] = of_channel(normalize.mean, i);
    by.standard_deviation[i] = of_channel(normalize.standard_deviation, i);
  }
  return by;
}

Range range_of(const NumberOrRange& value, double neutral) {
  if (const auto* range = std::get_if<Range>(&value)) return *range;
  const double number = std::get<double>(value);
  // A factor, whose neutral value is 1, is never negative.
  const double low = neutral - number;
  return {neutral == 1 ? std::max(0.0, low) : low, neutral + number};
}

ImageSize sides_of(const Sides& sides) {
  if (const auto* both = std::get_if<ImageSize>(&sides)) return *both;
  const std::int64_t side = std::get<std::int64_t>(sides);
  return {side, side};
}

}  // namespace lockstep::transforms
