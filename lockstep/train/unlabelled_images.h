// Images without labels, for a trained model to say what they are.
//
// A file is IDX, plain or gzip, as MNIST's are: count x height x width pixels
// of a byte. Or it is safetensors with one tensor of type U8: count x channels
// x height x width, or without the channels where there is one. Which it is,
// its first bytes say.
//
// Threads: pure functions; the file is read and not kept.
// Errors:  InvalidArgument naming the file for other contents, for no images
//          and for other channels than `like` has; SystemError when the file
//          cannot be read.
#pragma once

#include <filesystem>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// The images at `path`, with the classes and the mean and deviation of `like`,
// which is what the model was trained on. Their title is the file's name.
ImageDataset read_unlabelled_images(const std::filesystem::path& path,
                                    const ImageDataset& like);

}  // namespace lockstep
