#include "src/data/transform/transformed_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// Channels lie one after the other in a dataset, and side by side in an image.
Image image_of(const ImageDataset& dataset, std::int64_t index) {
  Image image{.size = {dataset.height, dataset.width},
              .channels = dataset.channels,
              .pixels = std::vector<std::uint8_t>(
                  static_cast<std::size_t>(dataset.image_elements()))};
  const auto channels = static_cast<std::size_t>(dataset.channels);
  const std::size_t pixels = image.pixels.size() / channels;
  const auto planes = dataset.image(index);
  for (std::size_t channel = 0; channel < channels; ++channel)
    for (std::size_t i = 0; i < pixels; ++i)
      image.pixels[i * channels + channel] = planes[channel * pixels + i];
  return image;
}

}  // namespace

TransformedImages::TransformedImages(const ImageDataset& dataset,
                                     const Compose& transforms,
                                     std::uint64_t seed)
    : dataset_(dataset), transforms_(transforms), seed_(seed) {
  (void)ImageSamples(dataset);  // which checks it
  const std::int64_t channels = dataset.channels;
  if (channels != 1 && channels != 3)
    throw InvalidArgument(fmt::format(
        "cannot transform images of {} channels; expected 1 or 3", channels));
  // Every image has the same size, as after this transform.
  std::vector<Transform> all{
      Resize{.size = ImageSize{dataset.height, dataset.width}}};
  all.insert(all.end(), transforms.transforms().begin(),
             transforms.transforms().end());
  const auto size = Compose(std::move(all)).output_size();
  if (!size)
    throw InvalidArgument(fmt::format(
        "cannot make batches with \"{}\": the outputs differ in size\n"
        "  next:    end the transforms with center_crop(SIZE), or another crop",
        transforms.text()));
  shape_ = {channels, size->height, size->width};
}

std::int64_t TransformedImages::read(std::int64_t index, std::uint64_t epoch,
                                     std::span<float> image) const {
  if (index < 0 || index >= size())
    throw InvalidArgument(fmt::format("{} has no image {}: it has {}",
                                      dataset_.title, index, size()));
  std::vector<float> numbers;
  transforms_.apply(image_of(dataset_, index),
                    {seed_, epoch, static_cast<std::uint64_t>(index)}, numbers);
  if (numbers.size() != image.size())
    throw InvalidArgument(
        fmt::format("cannot read an image of {} numbers into {}",
                    numbers.size(), image.size()));
  std::ranges::copy(numbers, image.begin());
  return dataset_.labels.empty()
             ? kNoLabel
             : dataset_.labels[static_cast<std::size_t>(index)];
}

}  // namespace lockstep
