#include "src/data/image/orientation.h"

#include <algorithm>
#include <cstddef>

namespace lockstep {
namespace {

// From a place as shown to the place as stored: exchange the coordinates, then
// count from the other end.
struct Turn {
  bool exchanges;
  bool from_last_row;
  bool from_last_column;
};

Turn turn_of(int orientation) {
  const auto is_one_of = [orientation](std::initializer_list<int> numbers) {
    return std::find(numbers.begin(), numbers.end(), orientation) !=
           numbers.end();
  };
  return {.exchanges = orientation >= 5,
          .from_last_row = is_one_of({3, 4, 6, 7}),
          .from_last_column = is_one_of({2, 3, 7, 8})};
}

}  // namespace

ImageSize shown_size(const ImageSize& stored, int orientation) {
  if (!turn_of(orientation).exchanges) return stored;
  return {.height = stored.width, .width = stored.height};
}

ImageRegion stored_region(const ImageRegion& shown, const ImageSize& stored,
                          int orientation) {
  const Turn turn = turn_of(orientation);
  ImageRegion region = shown;
  if (turn.exchanges)
    region = {.top = shown.left,
              .left = shown.top,
              .size = shown_size(shown.size, orientation)};
  if (turn.from_last_row)
    region.top = stored.height - region.top - region.size.height;
  if (turn.from_last_column)
    region.left = stored.width - region.left - region.size.width;
  return region;
}

void turn(const Image& stored, int orientation, Image& shown) {
  const Turn turn = turn_of(orientation);
  const auto [height, width] = stored.size;
  shown.size = shown_size(stored.size, orientation);
  shown.channels = stored.channels;
  shown.pixels.resize(stored.pixels.size());
  // The steps in `stored` for one row and one column of `shown`.
  const std::int64_t row_step = turn.from_last_row ? -width : width;
  const std::int64_t column_step = turn.from_last_column ? -1 : 1;
  const std::int64_t down = turn.exchanges ? column_step : row_step;
  const std::int64_t right = turn.exchanges ? row_step : column_step;
  const std::int64_t first = (turn.from_last_row ? (height - 1) * width : 0) +
                             (turn.from_last_column ? width - 1 : 0);
  std::uint8_t* out = shown.pixels.data();
  for (std::int64_t row = 0; row < shown.size.height; ++row)
    for (std::int64_t column = 0; column < shown.size.width; ++column) {
      const std::int64_t pixel = first + row * down + column * right;
      out = std::copy_n(stored.pixels.data() + pixel * stored.channels,
                        stored.channels, out);
    }
}

}  // namespace lockstep
