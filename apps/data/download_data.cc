#include "apps/data/download_data.h"

#include <CLI/CLI.hpp>

#include "apps/job/companion.h"
#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/name_table.h"
#include "src/data/known_datasets.h"

namespace lockstep {
namespace {

constexpr Companion kDownload{.name = "lockstep-download",
                              .variable = "LOCKSTEP_DOWNLOAD_PROGRAM"};
constexpr int kLongestTimeout = 86'400;

std::string not_empty(const std::string& value) {
  return value.empty() ? "expected a value, got \"\"" : "";
}

}  // namespace

void add_download_data_options(CLI::App& command,
                               DownloadDataOptions& options) {
  command.footer(
      "  lockstep data download mnist --data-dir data/mnist\n"
      "  lockstep train --dataset mnist --data-dir data/mnist");
  command
      .add_option("DATASET", options.dataset,
                  "The dataset to fetch: " + list_names(kDatasets))
      ->check(one_of("dataset", names_in(kDatasets)))
      ->type_name("");
  command
      .add_option("--from", options.from,
                  "The http, https or file address of a folder that has the "
                  "same files [the address that the dataset is known for]")
      ->check(not_empty)
      ->type_name("URL");
  command
      .add_option("--data-dir", options.data_dir,
                  "The folder to put them into, which lockstep train takes "
                  "too [where it looks without the flag]")
      ->check(not_empty)
      ->type_name("DIR");
  command
      .add_option("--timeout", options.timeout_seconds,
                  "Give up without a connection, or with less than 1 KiB per "
                  "second, for this long")
      ->check(whole_number(1, kLongestTimeout))
      ->capture_default_str()
      ->type_name("SECONDS");
  command.add_flag("--force", options.force,
                   "Replace files that are there and are not the right ones");
}

void complete_download_data_options(DownloadDataOptions& options) {
  if (options.dataset.empty())
    throw InvalidArgument(
        "download needs a dataset: lockstep data download mnist");
  if (options.data_dir.empty())
    options.data_dir = default_data_directory(options.dataset).string();
}

DownloadDataOptions parse_download_data(
    std::span<const char* const> arguments) {
  DownloadDataOptions options;
  CLI::App command("", "lockstep data download");
  command.allow_extras();
  command.set_help_flag();  // the command has answered that
  add_download_data_options(command, options);
  parse_flags(command, arguments);
  refuse_extras(command, "lockstep data download");
  complete_download_data_options(options);
  return options;
}

void run_download(const DownloadDataRequest& request,
                  const EnvironmentLookup& lookup) {
  std::vector<std::string> command{require_companion(kDownload, lookup)};
  command.insert(command.end(), request.arguments.begin(),
                 request.arguments.end());
  execute(command);
}

}  // namespace lockstep
