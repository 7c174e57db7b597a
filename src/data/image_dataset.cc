#include "lockstep/data/image_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/suggest.h"
#include "src/data/idx.h"
#include "src/data/malformed_file.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// A data set in MNIST's four files.
struct Known {
  std::string_view name;
  std::string_view title;
  std::string_view debian_package;      // "" without a package
  std::string_view torchvision_folder;  // below torchvision's root
  float mean;
  float standard_deviation;
  std::array<std::string_view, 10> class_names;
};

constexpr std::array kKnown{
    Known{.name = "fashion-mnist",
          .title = "Fashion-MNIST",
          .debian_package = "dataset-fashion-mnist",
          .torchvision_folder = "FashionMNIST/raw",
          .mean = 0.2860f,
          .standard_deviation = 0.3530f,
          .class_names = {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
                          "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"}},
    Known{.name = "mnist",
          .title = "MNIST",
          .debian_package = "",
          .torchvision_folder = "MNIST/raw",
          .mean = 0.1307f,
          .standard_deviation = 0.3081f,
          .class_names = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}}};

constexpr auto kNames = [] {
  std::array<std::string_view, kKnown.size()> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kKnown[i].name;
  return names;
}();

const Known& find_known(std::string_view name) {
  const auto found =
      std::find_if(kKnown.begin(), kKnown.end(),
                   [&](const Known& known) { return known.name == name; });
  if (found == kKnown.end())
    throw InvalidArgument(unknown_name("dataset", name, kNames));
  return *found;
}

fs::path debian_directory(const Known& known) {
  return fs::path("/usr/share/datasets") / known.name;
}

// The next step for a user without the files.
std::string next_step(const Known& known) {
  if (known.debian_package.empty())
    return fmt::format(
        "put {}'s four IDX files into a directory and name it with --data-dir",
        known.title);
  return fmt::format(
      "apt-get install {} (it fills {}), or name the directory that holds the "
      "four IDX files with --data-dir",
      known.debian_package, debian_directory(known).string());
}

// The first existing path of `file` in `directory`.
fs::path find_file(const Known& known, const fs::path& directory,
                   std::string_view file) {
  for (const fs::path& folder :
       {directory, directory / known.torchvision_folder}) {
    for (const std::string_view ending : {"", ".gz"}) {
      fs::path path = folder / fmt::format("{}{}", file, ending);
      std::error_code ignored;  // an unreadable file counts as missing
      if (fs::exists(path, ignored)) return path;
    }
  }
  throw InvalidArgument(fmt::format(
      "cannot load {}: no file {} or {}.gz in directory {}\n  next:    {}",
      known.title, file, file, directory.string(), next_step(known)));
}

void check_directory(const Known& known, const fs::path& directory) {
  std::error_code ignored;
  if (fs::is_directory(directory, ignored)) return;
  throw InvalidArgument(
      fmt::format("cannot load {}: there is no directory {}\n  next:    {}",
                  known.title, directory.string(), next_step(known)));
}

std::vector<std::int64_t> read_labels(const fs::path& path,
                                      std::size_t class_count) {
  constexpr std::size_t kHeaderBytes = 8;
  const std::vector<std::uint8_t> bytes = read_idx_file(path, 1).elements;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] >= class_count)
      throw malformed_file({.file = path.string(),
                            .problem = "a label is outside the classes",
                            .offset = kHeaderBytes + i,
                            .expected = fmt::format("0 to {}", class_count - 1),
                            .found = fmt::format("{}", bytes[i])});
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::span<const std::string_view> known_datasets() { return kNames; }

std::string_view dataset_titled(std::string_view title) {
  const auto found = std::ranges::find(kKnown, title, &Known::title);
  return found == kKnown.end() ? "" : found->name;
}

ImageDataset describe_dataset(std::string_view dataset) {
  const Known& known = find_known(dataset);
  return {.title = std::string(known.title),
          .images = {},
          .labels = {},
          .class_names = {known.class_names.begin(), known.class_names.end()},
          .mean = {known.mean},
          .standard_deviation = {known.standard_deviation}};
}

fs::path default_data_directory(std::string_view dataset) {
  return debian_directory(find_known(dataset));
}

ImageDataset load_dataset(std::string_view dataset, Split split,
                          const fs::path& directory) {
  const Known& known = find_known(dataset);
  const fs::path place =
      directory.empty() ? debian_directory(known) : directory;
  check_directory(known, place);
  const std::string_view prefix = split == Split::kTrain ? "train" : "t10k";
  const auto path_of = [&](std::string_view kind) {
    return find_file(known, place, fmt::format("{}-{}-ubyte", prefix, kind));
  };
  const fs::path images_path = path_of("images-idx3");
  const fs::path labels_path = path_of("labels-idx1");

  IdxArray images = read_idx_file(images_path, 3);
  if (images.elements.empty())
    throw malformed_file(
        {.file = images_path.string(),
         .problem = "there are no pixels in it",
         .offset = 4,
         .expected = "dimensions of at least 1",
         .found = fmt::format("{}", fmt::join(images.dimensions, " x "))});
  std::vector<std::int64_t> labels =
      read_labels(labels_path, known.class_names.size());
  if (labels.size() != images.dimensions[0])
    throw malformed_file(
        {.file = labels_path.string(),
         .problem = "labels and images do not match",
         .offset = 4,
         .expected = fmt::format("{} labels, as many as images in {}",
                                 images.dimensions[0], images_path.string()),
         .found = fmt::format("{}", labels.size())});

  ImageDataset set = describe_dataset(dataset);
  set.count = static_cast<std::int64_t>(images.dimensions[0]);
  set.channels = 1;
  set.height = static_cast<std::int64_t>(images.dimensions[1]);
  set.width = static_cast<std::int64_t>(images.dimensions[2]);
  set.images = std::move(images.elements);
  set.labels = std::move(labels);
  return set;
}

}  // namespace lockstep
