#include "apps/job/input_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "apps/download/known_downloads.h"
#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/image_folder_splits.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool exists(const fs::path& path) {
  std::error_code unreadable;
  return fs::exists(path, unreadable);
}

bool has_all_files(const KnownDataset& known, const fs::path& folder) {
  return std::ranges::all_of(
      row_named(kDownloads, "dataset", known.name).contents,
      [&](const KnownFile& file) {
        return std::ranges::any_of(file_places(known, folder, file.name),
                                   exists);
      });
}

// Reads the data only where a file is missing: load_dataset() then says which,
// and what to do.
void check_known(const std::string& dataset, const std::string& data_dir,
                 Split split) {
  const fs::path folder =
      data_dir.empty() ? default_data_directory(dataset) : fs::path(data_dir);
  if (!has_all_files(row_named(kDatasets, "dataset", dataset), folder))
    load_dataset(dataset, split, data_dir);
}

// Whether a folder seems to lack the split; the loader decides.
bool lacks(const std::string& data_dir, Split split) {
  if (data_dir.empty()) return true;
  const auto splits = split_folders(data_dir);
  const auto trains = std::ranges::count(splits, "train");
  return split == Split::kTrain ? trains == 0 : std::ssize(splits) == trains;
}

bool begins_as_model(std::string_view bytes, std::uint64_t size) {
  constexpr std::size_t kLengthBytes = 8;
  // LibTorch's archives, and the pickles of Python, which the ranks refuse.
  if (bytes.starts_with("PK") || bytes.starts_with('\x80')) return true;
  std::uint64_t header = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i)
    header |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return bytes[kLengthBytes] == '{' || header <= size;
}

}  // namespace

void check_training_data(const std::string& dataset,
                         const std::string& data_dir) {
  if (dataset != kImageFolder) {
    check_known(dataset, data_dir, Split::kTrain);
    check_known(dataset, data_dir, Split::kTest);
  } else if (lacks(data_dir, Split::kTrain) || lacks(data_dir, Split::kTest)) {
    load_folder_splits(data_dir, {});
  }
}

void check_split(const std::string& dataset, const std::string& data_dir,
                 Split split) {
  std::error_code unreadable;
  if (dataset == kImageFolder) {
    if (lacks(data_dir, split))
      load_folder_split(data_dir, split, kMostImageSide);
  } else if (!dataset.empty()) {
    check_known(dataset, data_dir, split);
  } else if (!data_dir.empty() && !fs::is_directory(data_dir, unreadable)) {
    throw InvalidArgument(
        fmt::format("there is no folder \"{}\"\n  next:    name the folder of "
                    "the data set's files with --data-dir",
                    data_dir));
  }
}

void check_may_be_model(const fs::path& file) {
  std::error_code unreadable;
  if (!fs::is_regular_file(file, unreadable)) return;
  std::array<char, 9> bytes{};
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(bytes.data(), bytes.size())) return;
  if (begins_as_model({bytes.data(), bytes.size()},
                      fs::file_size(file, unreadable)))
    return;
  throw InvalidArgument(fmt::format(
      "\"{}\" holds no model: it begins neither as a safetensors file nor as "
      "an archive of LibTorch\n"
      "  likely:  it is another kind of file\n"
      "  next:    name a file that lockstep train wrote, by --output or into "
      "--checkpoint-dir",
      file.string()));
}

}  // namespace lockstep
