#include "src/data/transform/pipeline.h"

#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "src/data/transform/affine.h"
#include "src/data/transform/color.h"
#include "src/data/transform/numbers.h"
#include "src/data/transform/rearrange.h"

namespace lockstep::transforms {
namespace {

void check_channels(const NormalizeBy& by, const Image& image) {
  if (by.channels != 0 && by.channels != image.channels)
    throw InvalidArgument(
        fmt::format("cannot normalize an image of {} channel(s) by {} means\n"
                    "  next:    give one mean and one std, or decode as RGB",
                    image.channels, by.channels));
}

}  // namespace

std::size_t Pipeline::apply_to_pixels(std::span<const Operation> operations,
                                      Image& image) {
  const auto replace = [&](const auto& change) {
    change();
    std::swap(image, other_);
  };
  std::size_t done = 0;
  for (const Operation& operation : operations) {
    if (std::holds_alternative<ToFloat>(operation)) break;
    ++done;
    std::visit(
        [&](const auto& one) {
          using T = std::remove_cvref_t<decltype(one)>;
          if constexpr (std::is_same_v<T, ResizeTo>)
            replace([&] { resizer_.apply(one, image, other_); });
          else if constexpr (std::is_same_v<T, Blur>)
            blurrer_.apply(one, image);
          else if constexpr (std::is_same_v<T, Adjust> ||
                             std::is_same_v<T, ShiftHue> ||
                             std::is_same_v<T, ToGray>)
            transforms::apply(one, image);
          else if constexpr (std::is_same_v<T, Pad> ||
                             std::is_same_v<T, Crop> ||
                             std::is_same_v<T, Mirror> ||
                             std::is_same_v<T, Turn> ||
                             std::is_same_v<T, MapAffine>)
            replace([&] { transforms::apply(one, image, other_); });
          else
            static_assert(std::is_same_v<T, ToFloat> ||
                              std::is_same_v<T, NormalizeBy> ||
                              std::is_same_v<T, Erase>,
                          "an operation on pixels is not applied");
        },
        operation);
  }
  return done;
}

void apply_to_numbers(std::span<const Operation> operations, const Image& image,
                      std::span<float> numbers) {
  NumberTables tables;
  apply(std::get<ToFloat>(operations.front()), tables);
  std::size_t done = 1;
  for (; done < operations.size(); ++done) {
    const auto* by = std::get_if<NormalizeBy>(&operations[done]);
    if (by == nullptr) break;
    check_channels(*by, image);
    apply(*by, tables);
  }
  look_up(tables, image, numbers);
  for (const Operation& operation : operations.subspan(done))
    if (const auto* by = std::get_if<NormalizeBy>(&operation)) {
      check_channels(*by, image);
      apply(*by, image.size, numbers);
    } else if (const auto* erase = std::get_if<Erase>(&operation)) {
      apply(*erase, image.size, numbers);
    }
}

}  // namespace lockstep::transforms
