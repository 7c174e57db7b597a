// Residual networks with 18, 34 and 50 layers: torchvision's `resnet18`,
// `resnet34` and `resnet50`, with its names of parameters and buffers, so that
// its state dicts load, and with the initial weights that it has after
// torch.manual_seed(seed).
//
// The stem kImageNet is torchvision's: a 7 x 7 convolution of stride 2 and
// max-pooling. Small images, such as CIFAR's, nearly vanish in it: at most 32
// pixels are one position in the end. The stem kCifar is a 3 x 3 convolution of
// stride 1 without pooling, as in the paper's section 4.2. Both are named
// `conv1` and `bn1`; the shape of `conv1.weight` tells which of them it is.
//
// Threads: like Classifier.
// Errors:  InvalidArgument for another name, for a dropout, which these models
//          lack, and for images below 9 x 9 pixels, which would shrink below
//          2 x 2 positions behind the smaller stem.
// Source:  He et al., "Deep Residual Learning for Image Recognition", CVPR
//          2016; with torchvision the stride of resnet50's blocks is in their
//          3 x 3 convolution.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "apps/trainer/model/models.h"

namespace lockstep {

// `asked`; or, if that is kAuto, kImageNet for images from 64 pixels on the
// shorter side on, and kCifar for smaller ones.
Stem chosen_stem(Stem asked, std::int64_t height, std::int64_t width);

// The stem whose first convolution has this weight: kAuto for any other shape.
Stem stem_of_weight(const at::Tensor& weight);

std::shared_ptr<Classifier> make_resnet(std::string_view name,
                                        const ModelOptions& options);

}  // namespace lockstep
