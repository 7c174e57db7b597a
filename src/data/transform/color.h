// Brightness, contrast, saturation and hue as PIL's ImageEnhance and its HSV
// images change them.
//
// Threads: any thread.
// Source:  Pillow 13; torchvision 0.28's adjust_hue() on PIL images.
#pragma once

#include "src/data/transform/operation.h"

namespace lockstep::transforms {

// Each changes `image` where it lies. Saturation and hue of a grey image have
// no effect.
void apply(const Adjust& adjust, Image& image);
void apply(const ShiftHue& shift, Image& image);
void apply(const ToGray& gray, Image& image);

}  // namespace lockstep::transforms
