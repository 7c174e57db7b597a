#include "apps/data/contact_sheet.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/random_permutation.h"

namespace lockstep {
namespace {

constexpr std::uint8_t kPaper = 236;

Image filled_image(const ImageSize& size,
                   const std::array<std::uint8_t, 3>& color) {
  Image image{.size = size};
  for (std::int64_t i = 0; i < size.height * size.width; ++i)
    image.pixels.insert(image.pixels.end(), color.begin(), color.end());
  return image;
}

// The whole image in a thumbnail's size. Pixels of small images stay squares.
Image thumbnail_of(const Image& image) {
  const auto longest =
      static_cast<double>(std::max(image.size.height, image.size.width));
  const double scale = static_cast<double>(kThumbnailSide) / longest;
  const auto scaled = [scale](std::int64_t side) {
    return std::max<std::int64_t>(
        std::llround(static_cast<double>(side) * scale), 1);
  };
  const Resize resize{
      .size = ImageSize{scaled(image.size.height), scaled(image.size.width)},
      .interpolation =
          scale > 1 ? Interpolation::kNearest : Interpolation::kBilinear};
  return Compose({resize}).apply_to_pixels(image, {});
}

class Sheet {
 public:
  Sheet(std::int64_t rows, std::int64_t columns)
      : image_(filled_image(
            {kThumbnailGap + rows * kStep, kThumbnailGap + columns * kStep},
            {kPaper, kPaper, kPaper})) {}

  // Draws `image`, RGB, into the middle of a cell.
  void draw(std::int64_t row, std::int64_t column, const Image& image) {
    const Image thumbnail = thumbnail_of(image);
    const auto [height, width] = thumbnail.size;
    const std::int64_t top =
        kThumbnailGap + row * kStep + (kThumbnailSide - height) / 2;
    const std::int64_t left =
        kThumbnailGap + column * kStep + (kThumbnailSide - width) / 2;
    for (std::int64_t i = 0; i < height; ++i)
      std::copy_n(
          thumbnail.pixels.begin() + i * width * 3, width * 3,
          image_.pixels.begin() + ((top + i) * image_.size.width + left) * 3);
  }

  Image& image() { return image_; }

 private:
  static constexpr std::int64_t kStep = kThumbnailSide + kThumbnailGap;

  Image image_;
};

// Up to kSheetColumns samples of a class, in a random order.
std::vector<std::int64_t> chosen(const std::vector<std::int64_t>& indices,
                                 std::uint64_t seed) {
  std::vector<std::int64_t> found;
  for (const std::int64_t place :
       random_permutation(std::ssize(indices), seed)) {
    if (std::ssize(found) == kSheetColumns) break;
    found.push_back(indices[static_cast<std::size_t>(place)]);
  }
  return found;
}

std::optional<Image> readable(const ShownSamples& samples, std::int64_t index) {
  try {
    return samples.read(index);
  } catch (const InvalidArgument&) {
    return std::nullopt;
  } catch (const SystemError&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<std::size_t> sheet_rows(const ShownSamples& samples) {
  const std::size_t classes = samples.by_class.size();
  const std::size_t count =
      std::min(classes, static_cast<std::size_t>(kMostSheetRows));
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < count; ++i) rows.push_back(i * classes / count);
  return rows;
}

Image contact_sheet(const ShownSamples& samples,
                    const ContactSheetOptions& options) {
  const std::vector<std::size_t> rows = sheet_rows(samples);
  const std::int64_t images_per_sample = options.augment ? 2 : 1;
  Sheet sheet(std::ssize(rows), kSheetColumns * images_per_sample);
  const Image unreadable = filled_image({1, 1}, {200, 30, 30});
  for (std::int64_t row = 0; row < std::ssize(rows); ++row) {
    std::int64_t column = 0;
    const std::size_t class_index = rows[static_cast<std::size_t>(row)];
    for (const std::int64_t index :
         chosen(samples.by_class[class_index], options.seed + class_index)) {
      const std::optional<Image> image = readable(samples, index);
      sheet.draw(row, column, image ? *image : unreadable);
      if (image && options.augment)
        sheet.draw(row, column + 1,
                   options.augment->apply_to_pixels(
                       *image, {.seed = options.seed,
                                .index = static_cast<std::uint64_t>(index)}));
      column += images_per_sample;
    }
  }
  return std::move(sheet.image());
}

}  // namespace lockstep
