#include "src/data/transform/plan.h"

#include <cmath>

#include "src/data/transform/resize.h"

namespace lockstep::transforms {
namespace {

// A scaled image is at least this many times as large as the result on both
// sides, so that resizing it still averages several pixels. Pillow's
// thumbnail() takes 2, too.
constexpr std::int64_t kLeastReduction = 2;

int denominator_of(const ImageSize& input, const ResizeTo& resize,
                   DecodeScaling scaling) {
  if (scaling == DecodeScaling::kExact ||
      resize.interpolation == Interpolation::kNearest)
    return 1;
  for (const int denominator : {8, 4, 2}) {
    const std::int64_t reduction = denominator * kLeastReduction;
    if (input.height >= reduction * resize.size.height &&
        input.width >= reduction * resize.size.width)
      return denominator;
  }
  return 1;
}

// Sets where the whole output of a side comes from, `input` at 1 /
// `denominator` of its size, and returns the part of it to decode.
PixelSpan plan_side(const PixelSpan& input, int denominator,
                    Interpolation interpolation, ResizeSide& side) {
  const double scale = 1.0 / denominator;
  const std::int64_t origin = input.first / denominator;
  const std::int64_t end =
      (input.first + input.count + denominator - 1) / denominator;
  side.begin =
      static_cast<double>(input.first) * scale - static_cast<double>(origin);
  side.end = static_cast<double>(input.first + input.count) * scale -
             static_cast<double>(origin);
  const PixelSpan sources = sources_of(side, end - origin, interpolation);
  side.offset = sources.first;
  return {origin + sources.first, sources.count};
}

}  // namespace

DecodePlan plan_decoding(const ImageSize& size, DecodeScaling scaling,
                         std::vector<Operation>& operations) {
  DecodePlan plan{.region = {.size = size}};
  if (const auto* crop = std::get_if<Crop>(&operations.front())) {
    plan.region = crop->region;
    operations.erase(operations.begin());
  }
  auto* resize = std::get_if<ResizeTo>(&operations.front());
  if (resize == nullptr) return plan;
  ImageRegion part{.size = resize->size};
  if (operations.size() > 1)
    if (const auto* crop = std::get_if<Crop>(&operations[1])) {
      part = crop->region;
      operations.erase(operations.begin() + 1);
      resize = std::get_if<ResizeTo>(&operations.front());
    }
  plan.denominator = denominator_of(plan.region.size, *resize, scaling);
  auto& [rows, columns] = resize->sides.emplace();
  rows = {
      .out = resize->size.height, .first = part.top, .count = part.size.height};
  columns = {
      .out = resize->size.width, .first = part.left, .count = part.size.width};
  const PixelSpan vertical =
      plan_side({plan.region.top, plan.region.size.height}, plan.denominator,
                resize->interpolation, rows);
  const PixelSpan horizontal =
      plan_side({plan.region.left, plan.region.size.width}, plan.denominator,
                resize->interpolation, columns);
  plan.region = {.top = vertical.first,
                 .left = horizontal.first,
                 .size = {vertical.count, horizontal.count}};
  return plan;
}

}  // namespace lockstep::transforms
