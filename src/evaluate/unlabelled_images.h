// Reads images without labels, for a trained model to classify.
//
// A file is IDX, plain or gzip, like MNIST's: count x height x width pixels of
// one byte. Or it is safetensors with one tensor of type U8: count x channels x
// height x width, or without the channels dimension for one channel. Its first
// bytes tell which.
//
// Threads: any; the file is closed before the call returns.
// Errors:  InvalidArgument naming the file for other contents, for an empty
//          file and for other channels than `like` has; SystemError when the
//          file cannot be read.
#pragma once

#include <filesystem>

#include "lockstep/data/image_dataset.h"

namespace lockstep {

// The images at `path`, with the classes and the mean and deviation of `like`,
// the model's training dataset. Their title is the file's name.
ImageDataset read_unlabelled_images(const std::filesystem::path& path,
                                    const ImageDataset& like);

}  // namespace lockstep
