#include "src/tools/job/data_flags.h"

#include <CLI/CLI.hpp>

#include "src/base/name_table.h"
#include "src/data/known_datasets.h"
#include "src/tools/job/flags.h"
#include "src/train/job/training_names.h"

namespace lockstep {

CLI::Option* add_dataset_flag(CLI::App& command, std::string& dataset,
                              const std::string& which) {
  return command
      .add_option("--dataset", dataset, list_names(kDatasets) + which)
      ->check(one_of("dataset", names_in(kDatasets)));
}

CLI::Option* add_model_flag(CLI::App& command, std::string& model,
                            const std::string& which) {
  return command.add_option("--model", model, list_names(kModels) + which)
      ->check(one_of("model", names_in(kModels)));
}

CLI::Option* add_data_dir_flag(CLI::App& command, std::string& data_dir) {
  return command
      .add_option("--data-dir", data_dir,
                  "Folder of the dataset's files, if not where Debian's "
                  "package puts them")
      ->type_name("DIR");
}

}  // namespace lockstep
