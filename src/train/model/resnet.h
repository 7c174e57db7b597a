// Residual networks with 18, 34 and 50 layers: torchvision's `resnet18`,
// `resnet34` and `resnet50`, with its names of parameters and buffers, so that
// its state dicts load, and with the initial weights that it has after
// torch.manual_seed(seed).
//
// The stem follows from the image size. From 64 pixels on the shorter side it
// is torchvision's: a 7 x 7 convolution of stride 2 and max-pooling. Smaller
// images, such as CIFAR's, would vanish in it: they get a 3 x 3 convolution of
// stride 1 and no pooling, as in the paper's section 4.2. Both stems are named
// `conv1` and `bn1`.
//
// Threads: like Classifier.
// Errors:  InvalidArgument for another name, for a dropout, which these models
//          lack, and for images that would shrink below 2 x 2 positions.
// Source:  He et al., "Deep Residual Learning for Image Recognition", CVPR
//          2016; with torchvision the stride of resnet50's blocks is in their
//          3 x 3 convolution.
#pragma once

#include <memory>
#include <string_view>

#include "src/train/model/models.h"

namespace lockstep {

std::shared_ptr<Classifier> make_resnet(std::string_view name,
                                        const ModelOptions& options);

}  // namespace lockstep
