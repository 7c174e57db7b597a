// The splits of an image folder in ImageNet's layout, and their images as a
// model sees them.
//
//   DIR/train/CLASS/IMAGE    DIR/val/CLASS/IMAGE    DIR/test/CLASS/IMAGE
//
// A directory has a split if the split's folder holds folders of classes. `val`
// may also be called `valid` or `validation`; of several the first in this
// order counts. A training run learns from train and measures on val, or on
// test without a val; an evaluation measures on test, or on val without a test.
// Measuring decodes with DecodeScaling::kExact.
//
// Threads: any thread.
// Errors:  those of lockstep/data/image_folder.h; InvalidArgument for a
//          directory without the split, for splits with different classes, and
//          for transforms that normalise otherwise; SystemError for a folder
//          that cannot be listed.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/transforms.h"

namespace lockstep {

inline constexpr std::array<std::string_view, 5> kSplitFolders{
    "train", "val", "valid", "validation", "test"};

// Whether a folder lies in `folder`; false if there is no such folder.
bool holds_folders(const std::filesystem::path& folder);

// The names of kSplitFolders that are splits of `directory`, in that order;
// none for a folder of classes.
std::vector<std::string> split_folders(const std::filesystem::path& directory);

// The largest side of the images that a model sees: evaluation_text() resizes
// to 8/7 of it, which is within the limit of the transforms.
inline constexpr std::int64_t kMostImageSide = 57'343;

// The transforms of test images, as torchvision's references evaluate: the
// shorter side resized to 8/7 of `size`, then the centre, `size` x `size`. 224
// pixels are of 256.
std::string evaluation_text(std::int64_t size);

// The transforms of a text, followed by `normalize`, which only random erasing
// may follow. A text that normalises otherwise is refused: different numbers in
// training and in the test would go unnoticed.
Compose normalized(const std::string& text, const Normalize& normalize);

// Both splits of a training run.
struct FolderSplits {
  // Of the test images; no images.
  ImageDataset facts;
  std::shared_ptr<const ImageFolder> train;
  std::shared_ptr<const ImageFolder> test;
  std::string test_folder;  // the name of its folder in the directory
};

struct FolderSplitsOptions {
  // The transforms of training images, as text without normalisation.
  std::string train_transforms{};
  DecodeScaling train_scaling = DecodeScaling::kScaled;
  std::int64_t size = 224;  // of test images, for evaluation_text()
  std::uint64_t seed = 0;
};

FolderSplits load_folder_splits(const std::filesystem::path& directory,
                                const FolderSplitsOptions& options);

// Images of a folder for a trained model, normalised as `facts` say.
struct FolderImages {
  ImageDataset facts;
  std::shared_ptr<const ImageFolder> samples;
  std::string split{};  // the name of the split's folder; empty for another
};

// One split, with the transforms of evaluation_text(size).
FolderImages load_folder_split(const std::filesystem::path& directory,
                               Split split, std::int64_t size);

// The images below `folder`, which have no labels, as those of `like` are: its
// channels, height, width, mean and standard deviation.
FolderImages load_unlabelled_folder(const std::filesystem::path& folder,
                                    const ImageDataset& like);

}  // namespace lockstep
