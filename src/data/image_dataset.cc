#include "lockstep/data/image_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/data/cifar.h"
#include "src/data/data_file.h"
#include "src/data/idx.h"
#include "src/data/known_datasets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const KnownDataset& find_known(std::string_view name) {
  return row_named(kDatasets, "dataset", name);
}

fs::path debian_directory(const KnownDataset& known) {
  return fs::path("/usr/share/datasets") / known.name;
}

// The next step for a user without the files.
std::string next_step(const KnownDataset& known) {
  const std::string fetch = fmt::format(
      "fetch the files with lockstep data download {}, ", known.name);
  if (known.files != DatasetFiles::kIdx)
    return fetch + fmt::format(
                       "or unpack the binary version of {}, and name the "
                       "directory that holds its folder {} with --data-dir",
                       known.title, known.folder);
  if (known.debian_package.empty())
    return fetch + fmt::format(
                       "or put {}'s four IDX files into a directory and name "
                       "it with --data-dir",
                       known.title);
  return fetch +
         fmt::format(
             "or apt-get install {} (it fills {}), or name the directory that "
             "holds the four IDX files with --data-dir",
             known.debian_package, debian_directory(known).string());
}

fs::path find_file(const KnownDataset& known, const fs::path& directory,
                   const std::string& file) {
  for (const fs::path& path : file_places(known, directory, file)) {
    std::error_code ignored;  // an unreadable file counts as missing
    if (fs::exists(path, ignored)) return path;
  }
  throw InvalidArgument(fmt::format(
      "cannot load {}: no file {}{} in directory {}\n  next:    {}",
      known.title, file,
      known.files == DatasetFiles::kIdx ? " or " + file + ".gz" : "",
      directory.string(), next_step(known)));
}

void check_directory(const KnownDataset& known, const fs::path& directory) {
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

struct Contents {
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> images{};
  std::vector<std::int64_t> labels{};
};

Contents load_idx(const KnownDataset& known, Split split,
                  const fs::path& directory) {
  const std::string prefix = split == Split::kTrain ? "train" : "t10k";
  const auto path_of = [&](std::string_view kind) {
    return find_file(known, directory,
                     fmt::format("{}-{}-ubyte", prefix, kind));
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
  return {.channels = 1,
          .height = static_cast<std::int64_t>(images.dimensions[1]),
          .width = static_cast<std::int64_t>(images.dimensions[2]),
          .images = std::move(images.elements),
          .labels = std::move(labels)};
}

Contents load_cifar(const KnownDataset& known, Split split,
                    const fs::path& directory) {
  const bool is_small = known.files == DatasetFiles::kCifar10;
  std::vector<std::string> files;
  if (!is_small)
    files = {split == Split::kTrain ? "train.bin" : "test.bin"};
  else if (split == Split::kTest)
    files = {"test_batch.bin"};
  else
    for (int i = 1; i <= 5; ++i)
      files.push_back(fmt::format("data_batch_{}.bin", i));
  CifarImages images;
  for (const std::string& file : files) {
    const fs::path path = find_file(known, directory, file);
    append_cifar(read_data_file(path),
                 {.bytes = is_small ? std::size_t{1} : std::size_t{2},
                  .classes = known.class_names.size()},
                 path.string(), images);
  }
  return {.channels = 3,
          .height = kCifarSide,
          .width = kCifarSide,
          .images = std::move(images.pixels),
          .labels = std::move(images.labels)};
}

}  // namespace

std::span<const std::string_view> known_datasets() {
  static const std::vector<std::string_view> names = names_in(kDatasets);
  return names;
}

std::string_view dataset_titled(std::string_view title) {
  const auto found = std::ranges::find(kDatasets, title, &KnownDataset::title);
  return found == kDatasets.end() ? "" : found->name;
}

ImageDataset describe_dataset(std::string_view dataset) {
  const KnownDataset& known = find_known(dataset);
  return {.title = std::string(known.title),
          .images = {},
          .labels = {},
          .class_names = {known.class_names.begin(), known.class_names.end()},
          .mean = {known.mean.begin(), known.mean.end()},
          .standard_deviation = {known.standard_deviation.begin(),
                                 known.standard_deviation.end()}};
}

fs::path default_data_directory(std::string_view dataset) {
  return debian_directory(find_known(dataset));
}

ImageDataset load_dataset(std::string_view dataset, Split split,
                          const fs::path& directory) {
  const KnownDataset& known = find_known(dataset);
  const fs::path place =
      directory.empty() ? debian_directory(known) : directory;
  check_directory(known, place);
  Contents contents = known.files == DatasetFiles::kIdx
                          ? load_idx(known, split, place)
                          : load_cifar(known, split, place);
  ImageDataset set = describe_dataset(dataset);
  set.count = std::ssize(contents.labels);
  set.channels = contents.channels;
  set.height = contents.height;
  set.width = contents.width;
  set.images = std::move(contents.images);
  set.labels = std::move(contents.labels);
  return set;
}

}  // namespace lockstep
