// The arguments of each transform, in torchvision's order: the one list from
// which transforms are read and printed.
//
// Threads: any thread.
#pragma once

#include <type_traits>

#include "lockstep/data/transforms.h"
#include "src/data/transform/text_value.h"

namespace lockstep::transforms {

// Each calls `visit(name, member)` for every argument. `Of` is the transform,
// const or not.
template <class Of, class Visit>
void for_each_field(Of& transform, const Visit& visit) {
  using T = std::remove_const_t<Of>;
  if constexpr (std::is_same_v<T, Resize>) {
    visit("size", transform.size);
    visit("interpolation", transform.interpolation);
    visit("max_size", transform.max_size);
  } else if constexpr (std::is_same_v<T, CenterCrop>) {
    visit("size", transform.size);
  } else if constexpr (std::is_same_v<T, RandomCrop>) {
    visit("size", transform.size);
    visit("padding", transform.padding);
    visit("pad_if_needed", transform.pad_if_needed);
    visit("fill", transform.fill);
    visit("padding_mode", transform.padding_mode);
  } else if constexpr (std::is_same_v<T, RandomResizedCrop>) {
    visit("size", transform.size);
    visit("scale", transform.scale);
    visit("ratio", transform.ratio);
    visit("interpolation", transform.interpolation);
  } else if constexpr (std::is_same_v<T, RandomHorizontalFlip> ||
                       std::is_same_v<T, RandomVerticalFlip> ||
                       std::is_same_v<T, RandomGrayscale>) {
    visit("p", transform.p);
  } else if constexpr (std::is_same_v<T, RandomRotation>) {
    visit("degrees", transform.degrees);
    visit("interpolation", transform.interpolation);
    visit("expand", transform.expand);
    visit("center", transform.center);
    visit("fill", transform.fill);
  } else if constexpr (std::is_same_v<T, RandomAffine>) {
    visit("degrees", transform.degrees);
    visit("translate", transform.translate);
    visit("scale", transform.scale);
    visit("shear", transform.shear);
    visit("interpolation", transform.interpolation);
    visit("fill", transform.fill);
    visit("center", transform.center);
  } else if constexpr (std::is_same_v<T, ColorJitter>) {
    visit("brightness", transform.brightness);
    visit("contrast", transform.contrast);
    visit("saturation", transform.saturation);
    visit("hue", transform.hue);
  } else if constexpr (std::is_same_v<T, GaussianBlur>) {
    visit("kernel_size", WidthFirst{transform.kernel_size});
    visit("sigma", transform.sigma);
  } else if constexpr (std::is_same_v<T, Normalize>) {
    visit("mean", transform.mean);
    visit("std", transform.standard_deviation);
  } else if constexpr (std::is_same_v<T, RandomErasing>) {
    visit("p", transform.p);
    visit("scale", transform.scale);
    visit("ratio", transform.ratio);
    visit("value", transform.value);
  } else {
    static_assert(std::is_same_v<T, ToTensor>, "a transform without a list");
  }
}

}  // namespace lockstep::transforms
