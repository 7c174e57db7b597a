// The data sets that load_dataset() and the flag --dataset know, in MNIST's
// four files: a new one is a row here.
//
// The command includes it: it needs no library.
//
// Threads: any thread.
#pragma once

#include <array>
#include <string_view>

namespace lockstep {

struct KnownDataset {
  std::string_view name;
  std::string_view title;
  std::string_view debian_package;      // "" without a package
  std::string_view torchvision_folder;  // below torchvision's root
  float mean;
  float standard_deviation;
  std::array<std::string_view, 10> class_names;
};

inline constexpr std::array kDatasets{
    KnownDataset{
        .name = "fashion-mnist",
        .title = "Fashion-MNIST",
        .debian_package = "dataset-fashion-mnist",
        .torchvision_folder = "FashionMNIST/raw",
        .mean = 0.2860f,
        .standard_deviation = 0.3530f,
        .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                        "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"}},
    KnownDataset{
        .name = "mnist",
        .title = "MNIST",
        .debian_package = "",
        .torchvision_folder = "MNIST/raw",
        .mean = 0.1307f,
        .standard_deviation = 0.3081f,
        .class_names = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}}};

}  // namespace lockstep
