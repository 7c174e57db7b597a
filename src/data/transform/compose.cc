#include <fmt/format.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/data/transforms.h"
#include "src/data/transform/check_transform.h"
#include "src/data/transform/draw.h"
#include "src/data/transform/pipeline.h"
#include "src/data/transform/transform_text.h"

namespace lockstep {
namespace {

void check_image(const Image& image) {
  const auto [height, width] = image.size;
  const bool has_form =
      height > 0 && width > 0 && (image.channels == 1 || image.channels == 3);
  if (!has_form ||
      std::cmp_not_equal(image.pixels.size(), height * width * image.channels))
    throw InvalidArgument(fmt::format(
        "cannot transform an image of {} x {} with {} channels and {} bytes; "
        "expected 1 or 3 channels, and as many bytes as height x width x "
        "channels",
        height, width, image.channels, image.pixels.size()));
}

}  // namespace

Normalize imagenet_normalize() {
  return {.mean = {0.485f, 0.456f, 0.406f},
          .standard_deviation = {0.229f, 0.224f, 0.225f}};
}

Compose::Compose(std::vector<Transform> transforms)
    : transforms_(std::move(transforms)) {
  for (const Transform& transform : transforms_) transforms::check(transform);
  transforms::check_order(transforms_);
}

Compose::Compose(std::string_view text) : Compose(transforms::parse(text)) {}

std::string Compose::text() const {
  std::vector<std::string> texts;
  for (const Transform& transform : transforms_)
    texts.push_back(transforms::print(transform));
  return fmt::format("{}", fmt::join(texts, " | "));
}

std::optional<ImageSize> Compose::output_size() const {
  std::optional<ImageSize> size;
  for (const Transform& transform : transforms_)
    size = transforms::size_after(transform, size);
  return size;
}

Image Compose::apply_to_pixels(const Image& image, const SampleKey& key) const {
  check_image(image);
  std::vector<transforms::Operation> operations;
  transforms::draw_all(transforms_, image.size, key, operations);
  Image changed = image;
  transforms::Pipeline().apply_to_pixels(operations, changed);
  return changed;
}

ImageSize Compose::apply(const Image& image, const SampleKey& key,
                         std::vector<float>& numbers) const {
  check_image(image);
  std::vector<transforms::Operation> operations;
  transforms::draw_all(transforms_, image.size, key, operations);
  Image changed = image;
  const std::size_t done =
      transforms::Pipeline().apply_to_pixels(operations, changed);
  numbers.resize(changed.pixels.size());
  transforms::apply_to_numbers(std::span(operations).subspan(done), changed,
                               numbers);
  return changed.size;
}

}  // namespace lockstep
