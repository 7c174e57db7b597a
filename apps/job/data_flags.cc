#include "apps/job/data_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/download/known_downloads.h"
#include "apps/job/flags.h"
#include "apps/job/training_flag_parser.h"
#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/name_table.h"
#include "src/data/data_file.h"
#include "src/data/known_datasets.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::vector<std::string_view> dataset_names() {
  std::vector<std::string_view> names = names_in(kDatasets);
  names.push_back(kImageFolder);
  return names;
}

[[noreturn]] void refuse(const fs::path& output) {
  throw InvalidArgument(fmt::format(
      "\"{}\" would overwrite a file of the data: write to another file",
      output.string()));
}

// Below `folder`, in as many folders as `least_depth` at least. A large folder
// is listed only for a file that can be an image in it.
void refuse_image(const fs::path& output, const fs::path& folder,
                  int least_depth) {
  std::error_code unknown;
  if (!fs::is_regular_file(output, unknown)) return;
  if (!has_extension(fs::canonical(output, unknown), kImageExtensions) &&
      fs::hard_link_count(output, unknown) == 1)
    return;
  // The ranks report what cannot be listed, and a deeper path, which goes
  // through a link to a folder above it.
  constexpr int kMostDepth = 32;
  std::error_code error;
  fs::recursive_directory_iterator entry(
      folder,
      fs::directory_options::follow_directory_symlink |
          fs::directory_options::skip_permission_denied,
      error);
  for (; !error && entry != fs::recursive_directory_iterator() &&
         entry.depth() <= kMostDepth;
       entry.increment(error)) {
    if (entry.depth() >= least_depth &&
        has_extension(entry->path(), kImageExtensions) &&
        fs::equivalent(entry->path(), output, unknown))
      refuse(output);
  }
}

}  // namespace

CLI::Option* add_dataset_flag(CLI::App& command, std::string& dataset,
                              const std::string& which) {
  return command
      .add_option("--dataset", dataset,
                  fmt::format("{}; {}: a folder of JPEG and PNG files{}",
                              list_names(kDatasets), kImageFolder, which))
      ->check(one_of("dataset", dataset_names()));
}

CLI::Option* add_model_flag(CLI::App& command, std::string& model,
                            const std::string& which) {
  TrainingFlag flag = model_flag(model);
  flag.help += which;
  return add_flag(command, flag);
}

CLI::Option* add_workers_flag(CLI::App& command, std::optional<int>& workers) {
  return command
      .add_option("--workers", workers,
                  "Threads per rank that read images [1; of a folder the cores "
                  "/ ranks]")
      ->check(whole_number(1, kMostThreadsOfARank))
      ->type_name("N");
}

CLI::Option* add_data_dir_flag(CLI::App& command, std::string& data_dir) {
  return command
      .add_option("--data-dir", data_dir,
                  "Folder of the dataset's files, if not where Debian's "
                  "package puts them; of an imagefolder the one that holds "
                  "train/CLASS/IMAGE and val/CLASS/IMAGE")
      ->type_name("DIR");
}

void check_spares_data(const fs::path& output, const std::string& data_dir) {
  for (const KnownDataset& known : kDatasets) {
    const fs::path directory = data_dir.empty()
                                   ? default_data_directory(known.name)
                                   : fs::path(data_dir);
    for (const KnownFile& file :
         row_named(kDownloads, "dataset", known.name).contents)
      for (const fs::path& place : file_places(known, directory, file.name)) {
        std::error_code unknown;  // a missing file is another file
        if (fs::equivalent(place, output, unknown)) refuse(output);
      }
  }
  refuse_image(output, data_dir, 1);
}

void check_spares_images(const fs::path& output, const fs::path& folder) {
  refuse_image(output, folder, 0);
}

}  // namespace lockstep
