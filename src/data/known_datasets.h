// The data sets that load_dataset() and the flag --dataset know: a new one in
// MNIST's four files, or in CIFAR's, is a row here.
//
// The command includes it: it needs no library.
//
// Threads: any thread.
#pragma once

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// The name and the title of the data set that is a folder of images: see
// lockstep/data/image_folder.h. It has no row below.
inline constexpr std::string_view kImageFolder = "imagefolder";
inline constexpr std::string_view kImageFolderTitle = "Image folder";

enum class DatasetFiles { kIdx, kCifar10, kCifar100 };

struct KnownDataset {
  std::string_view name;
  std::string_view title;
  DatasetFiles files;
  std::string_view debian_package;  // "" without a package
  std::string_view folder;  // in which the files may be, as their archive says
  // Of the training set's pixels divided by 255, by channel.
  std::span<const float> mean;
  std::span<const float> standard_deviation;
  std::span<const std::string_view> class_names;
};

namespace known_datasets_internal {

inline constexpr std::array<std::string_view, 10> kClothes{
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
inline constexpr std::array<std::string_view, 10> kDigits{
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
inline constexpr std::array<std::string_view, 10> kCifar10Names{
    "airplane", "automobile", "bird",  "cat",  "deer",
    "dog",      "frog",       "horse", "ship", "truck"};
inline constexpr std::array<std::string_view, 100> kCifar100Names{
    "apple",    "aquarium_fish", "baby",       "bear",         "beaver",
    "bed",      "bee",           "beetle",     "bicycle",      "bottle",
    "bowl",     "boy",           "bridge",     "bus",          "butterfly",
    "camel",    "can",           "castle",     "caterpillar",  "cattle",
    "chair",    "chimpanzee",    "clock",      "cloud",        "cockroach",
    "couch",    "crab",          "crocodile",  "cup",          "dinosaur",
    "dolphin",  "elephant",      "flatfish",   "forest",       "fox",
    "girl",     "hamster",       "house",      "kangaroo",     "keyboard",
    "lamp",     "lawn_mower",    "leopard",    "lion",         "lizard",
    "lobster",  "man",           "maple_tree", "motorcycle",   "mountain",
    "mouse",    "mushroom",      "oak_tree",   "orange",       "orchid",
    "otter",    "palm_tree",     "pear",       "pickup_truck", "pine_tree",
    "plain",    "plate",         "poppy",      "porcupine",    "possum",
    "rabbit",   "raccoon",       "ray",        "road",         "rocket",
    "rose",     "sea",           "seal",       "shark",        "shrew",
    "skunk",    "skyscraper",    "snail",      "snake",        "spider",
    "squirrel", "streetcar",     "sunflower",  "sweet_pepper", "table",
    "tank",     "telephone",     "television", "tiger",        "tractor",
    "train",    "trout",         "tulip",      "turtle",       "wardrobe",
    "whale",    "willow_tree",   "wolf",       "woman",        "worm"};

inline constexpr std::array kFashionMean{0.2860f}, kFashionDeviation{0.3530f};
inline constexpr std::array kDigitsMean{0.1307f}, kDigitsDeviation{0.3081f};
inline constexpr std::array kCifar10Mean{0.4914f, 0.4822f, 0.4465f};
inline constexpr std::array kCifar10Deviation{0.2470f, 0.2435f, 0.2616f};
inline constexpr std::array kCifar100Mean{0.5071f, 0.4865f, 0.4409f};
inline constexpr std::array kCifar100Deviation{0.2673f, 0.2564f, 0.2762f};

}  // namespace known_datasets_internal

inline constexpr std::array kDatasets{
    KnownDataset{
        .name = "fashion-mnist",
        .title = "Fashion-MNIST",
        .files = DatasetFiles::kIdx,
        .debian_package = "dataset-fashion-mnist",
        .folder = "FashionMNIST/raw",
        .mean = known_datasets_internal::kFashionMean,
        .standard_deviation = known_datasets_internal::kFashionDeviation,
        .class_names = known_datasets_internal::kClothes},
    KnownDataset{
        .name = "mnist",
        .title = "MNIST",
        .files = DatasetFiles::kIdx,
        .debian_package = "",
        .folder = "MNIST/raw",
        .mean = known_datasets_internal::kDigitsMean,
        .standard_deviation = known_datasets_internal::kDigitsDeviation,
        .class_names = known_datasets_internal::kDigits},
    KnownDataset{
        .name = "cifar10",
        .title = "CIFAR-10",
        .files = DatasetFiles::kCifar10,
        .debian_package = "",
        .folder = "cifar-10-batches-bin",
        .mean = known_datasets_internal::kCifar10Mean,
        .standard_deviation = known_datasets_internal::kCifar10Deviation,
        .class_names = known_datasets_internal::kCifar10Names},
    KnownDataset{
        .name = "cifar100",
        .title = "CIFAR-100",
        .files = DatasetFiles::kCifar100,
        .debian_package = "",
        .folder = "cifar-100-binary",
        .mean = known_datasets_internal::kCifar100Mean,
        .standard_deviation = known_datasets_internal::kCifar100Deviation,
        .class_names = known_datasets_internal::kCifar100Names}};

// Where load_dataset() looks for `file` of a dataset whose files are in
// `directory`: it reads the first path that exists.
inline std::vector<std::filesystem::path> file_places(
    const KnownDataset& known, const std::filesystem::path& directory,
    std::string_view file) {
  std::vector<std::filesystem::path> places;
  for (const auto& folder : {directory, directory / known.folder}) {
    places.push_back(folder / file);
    if (known.files == DatasetFiles::kIdx)
      places.push_back(folder / (std::string(file) + ".gz"));
  }
  return places;
}

}  // namespace lockstep
