#include "apps/evaluate/image_side.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "src/base/number_in.h"

namespace lockstep {
namespace {

// The last number of "3 x 64 x 64".
std::optional<std::int64_t> side_in(const std::string& images) {
  const auto last = images.rfind(' ');
  if (last == std::string::npos) return std::nullopt;
  const auto side = number_in<std::int64_t>(images.substr(last + 1));
  return side && *side > 0 ? side : std::nullopt;
}

}  // namespace

std::int64_t image_side(std::optional<std::int64_t> asked,
                        const ModelImages& model) {
  const auto side = side_in(model.images);
  if (!side && !asked)
    throw InvalidArgument(fmt::format(
        "the file \"{}\" does not say how large the images of its model are\n"
        "  next:    give the side with --image-size",
        model.file));
  if (side && asked && *side != *asked)
    throw InvalidArgument(fmt::format(
        "--image-size is {}, but the model in \"{}\" takes images of {}\n"
        "  next:    leave out --image-size, or train a model with --image-size "
        "{}",
        *asked, model.file, model.images, *asked));
  return asked ? *asked : *side;
}

void check_no_image_side(std::optional<std::int64_t> asked,
                         const ModelImages& model, std::string_view title) {
  if (!asked) return;
  const std::string taken = model.images.empty()
                                ? ""
                                : fmt::format(
                                      ", as the model in \"{}\" takes "
                                      "them: {}",
                                      model.file, model.images);
  throw InvalidArgument(fmt::format(
      "--image-size is {}, but only images of a folder are resized; those of "
      "{} have one size{}\n"
      "  next:    leave out --image-size",
      *asked, title, taken));
}

}  // namespace lockstep
