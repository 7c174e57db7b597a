#include "src/tools/job/data_flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string_view>
#include <vector>

#include "src/base/name_table.h"
#include "src/data/known_datasets.h"
#include "src/tools/job/flags.h"
#include "src/train/job/training_names.h"

namespace lockstep {
namespace {

std::vector<std::string_view> dataset_names() {
  std::vector<std::string_view> names = names_in(kDatasets);
  names.push_back(kImageFolder);
  return names;
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
  return command.add_option("--model", model, list_names(kModels) + which)
      ->check(one_of("model", names_in(kModels)));
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

}  // namespace lockstep
