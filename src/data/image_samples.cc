#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/data/sample_random.h"

namespace lockstep {
namespace {

[[noreturn]] void fail(const ImageDataset& dataset,
                       const std::string& problem) {
  throw InvalidArgument(
      fmt::format("cannot use data set \"{}\": {}", dataset.title, problem));
}

void check_dataset(const ImageDataset& dataset) {
  if (dataset.count < 0 || dataset.channels < 1 || dataset.height < 1 ||
      dataset.width < 1)
    fail(dataset, fmt::format("it has {} images of {} x {} x {}", dataset.count,
                              dataset.channels, dataset.height, dataset.width));
  const auto pixels =
      static_cast<std::size_t>(dataset.count * dataset.image_elements());
  if (dataset.images.size() != pixels)
    fail(dataset,
         fmt::format("{} pixels instead of {}", dataset.images.size(), pixels));
  if (!dataset.labels.empty() &&
      dataset.labels.size() != static_cast<std::size_t>(dataset.count))
    fail(dataset, fmt::format("{} labels for {} images", dataset.labels.size(),
                              dataset.count));
  const auto channels = static_cast<std::size_t>(dataset.channels);
  if (dataset.mean.size() != channels ||
      dataset.standard_deviation.size() != channels)
    fail(dataset, fmt::format("{} means and {} standard deviations for {} "
                              "channels",
                              dataset.mean.size(),
                              dataset.standard_deviation.size(), channels));
  for (const float deviation : dataset.standard_deviation)
    if (!(deviation > 0) || std::isinf(deviation))
      fail(dataset,
           fmt::format("a standard deviation is {}; it must be positive",
                       deviation));
}

}  // namespace

ImageSamples::ImageSamples(const ImageDataset& dataset,
                           const AugmentationOptions& options)
    : dataset_(dataset), options_(options) {
  check_dataset(dataset);
  const std::int64_t most = std::min(dataset.height, dataset.width);
  if (options.crop_padding < 0 || options.crop_padding > most)
    throw InvalidArgument(fmt::format(
        "cannot augment images of {} x {}: the crop padding is {}; it must be "
        "0 to {}",
        dataset.height, dataset.width, options.crop_padding, most));
  for (std::size_t channel = 0; channel < dataset.mean.size(); ++channel)
    for (std::size_t pixel = 0; pixel < kPixelValues; ++pixel)
      levels_.push_back(
          (static_cast<float>(pixel) / 255.0f - dataset.mean[channel]) /
          dataset.standard_deviation[channel]);
}

std::int64_t ImageSamples::read(std::int64_t index, std::uint64_t epoch,
                                std::span<float> image) const {
  const auto values_of = [&](std::size_t channel) {
    return [levels = levels_.data() + channel * kPixelValues](
               std::uint8_t pixel) { return levels[pixel]; };
  };
  return write(index, epoch, values_of, image);
}

std::int64_t ImageSamples::read_pixels(std::int64_t index, std::uint64_t epoch,
                                       std::span<std::uint8_t> image) const {
  const auto values_of = [](std::size_t) { return std::identity(); };
  return write(index, epoch, values_of, image);
}

template <class Element, class ValuesOf>
std::int64_t ImageSamples::write(std::int64_t index, std::uint64_t epoch,
                                 const ValuesOf& values_of,
                                 std::span<Element> image) const {
  const std::span<const std::uint8_t> pixels = dataset_.image(index);
  const Placement placement = place(index, epoch);
  const auto channels = static_cast<std::size_t>(dataset_.channels);
  const std::size_t area = pixels.size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel)
    write_channel(pixels.subspan(channel * area, area), values_of(channel),
                  placement, image.subspan(channel * area, area));
  if (dataset_.labels.empty()) return kNoLabel;
  return dataset_.labels[static_cast<std::size_t>(index)];
}

ImageSamples::Placement ImageSamples::place(std::int64_t index,
                                            std::uint64_t epoch) const {
  SampleRandom random(options_.seed, epoch, static_cast<std::uint64_t>(index));
  const auto padding = static_cast<std::uint32_t>(options_.crop_padding);
  Placement placement;
  // All three are drawn with any options, so turning one off does not change
  // the others.
  placement.row = std::int64_t{random.below(2 * padding + 1)} - padding;
  placement.column = std::int64_t{random.below(2 * padding + 1)} - padding;
  placement.mirrored = random.below(2) == 1 && options_.horizontal_flip;
  return placement;
}

template <class Element, class Value>
void ImageSamples::write_channel(std::span<const std::uint8_t> pixels,
                                 const Value& value, const Placement& placement,
                                 std::span<Element> out) const {
  const Element black = value(std::uint8_t{0});
  const std::int64_t height = dataset_.height;
  const std::int64_t width = dataset_.width;
  // The columns of the crop that lie within the image.
  const std::int64_t begin = std::max<std::int64_t>(0, -placement.column);
  const std::int64_t end = std::min(width, width - placement.column);
  for (std::int64_t y = 0; y < height; ++y) {
    Element* row = out.data() + y * width;
    const std::int64_t from = y + placement.row;
    if (from < 0 || from >= height) {
      std::fill_n(row, width, black);
      continue;
    }
    const std::uint8_t* source =
        pixels.data() + from * width + placement.column;
    std::fill_n(row, begin, black);
    for (std::int64_t x = begin; x < end; ++x) row[x] = value(source[x]);
    std::fill(row + end, row + width, black);
    if (placement.mirrored) std::reverse(row, row + width);
  }
}

}  // namespace lockstep
