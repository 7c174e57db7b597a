#include "apps/data/show_data.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "apps/data/contact_sheet.h"
#include "apps/job/data_flags.h"
#include "apps/job/flags.h"
#include "lockstep/base/error.h"
#include "src/base/name_table.h"
#include "src/base/printable.h"
#include "src/base/suggest.h"
#include "src/base/text_file.h"
#include "src/data/image/image_writer.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_known(const std::string& data) {
  return std::ranges::find(known_datasets(), data) != known_datasets().end();
}

void check_is_there(const ShowDataOptions& options) {
  if (is_known(options.data)) return;
  std::error_code unreadable;
  if (!fs::is_directory(options.data, unreadable))
    throw InvalidArgument(
        fmt::format("there is no folder \"{}\" of images, and {}", options.data,
                    unknown_name("dataset", options.data, known_datasets())));
  if (!options.data_dir.empty())
    throw InvalidArgument(fmt::format(
        "--data-dir is for the datasets {}; of a folder of images give the "
        "folder alone",
        listed({known_datasets().begin(), known_datasets().end()}, "and")));
}

void check_augment(const ShowDataOptions& options) {
  if (options.augment.empty()) return;
  if (options.contact_sheet.empty())
    throw InvalidArgument(
        "--augment shows its effect on a contact sheet: give --contact-sheet "
        "FILE.png too");
  try {
    const Compose parsed(options.augment);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("--augment: {}", error.what()));
  }
}

// The datasets' memory lives as long as their samples.
struct Splits {
  DataReport report{};
  std::vector<std::pair<std::string, std::unique_ptr<ImageFolder>>> folders{};
  std::unique_ptr<ImageDataset> dataset{};

  ShownSamples first_samples() const {
    return dataset ? shown_samples(*dataset)
                   : shown_samples(*folders.front().second);
  }
};

Splits examine_known(const ShowDataOptions& options) {
  Splits splits;
  const auto load = [&](Split split, const char* name) {
    auto loaded = std::make_unique<ImageDataset>(
        load_dataset(options.data, split, options.data_dir));
    splits.report.splits.push_back(examine_dataset(*loaded));
    splits.report.splits.back().name = name;
    return loaded;
  };
  splits.dataset = load(Split::kTrain, "train");
  load(Split::kTest, "test");
  splits.report.title = splits.dataset->title;
  splits.report.mean = splits.dataset->mean;
  splits.report.standard_deviation = splits.dataset->standard_deviation;
  return splits;
}

Splits examine_folders(const ShowDataOptions& options) {
  Splits splits;
  splits.report.title = options.data;
  splits.report.checked = options.depth == ExamineDepth::kPixels;
  splits.folders = open_image_folders(options.data);
  for (const auto& [name, folder] : splits.folders) {
    splits.report.splits.push_back(
        examine_folder(*folder, options.data, options.depth, options.threads));
    splits.report.splits.back().name = name;
  }
  return splits;
}

// Returns a line that says what the rows are.
std::string write_contact_sheet(const ShowDataOptions& options,
                                const ShownSamples& samples) {
  ContactSheetOptions sheet{.seed = options.seed};
  if (!options.augment.empty()) sheet.augment.emplace(options.augment);
  const std::vector<std::byte> png = write_png(contact_sheet(samples, sheet));
  replace_text_file(options.contact_sheet,
                    {reinterpret_cast<const char*>(png.data()), png.size()});
  std::vector<std::string> names;
  for (const std::size_t index : sheet_rows(samples))
    names.push_back(printable(samples.class_names[index]));
  return fmt::format("contact sheet: {}, rows from above: {}\n",
                     options.contact_sheet, fmt::join(names, ", "));
}

}  // namespace

void add_show_data_options(CLI::App& command, ShowDataOptions& options) {
  command.footer(
      "Exits with 0, and with 1 where an image is broken.\n\n"
      "  lockstep data show photos --check\n"
      "  lockstep data show photos --contact-sheet sheet.png --augment "
      "\"random_resized_crop(96) | hflip\"");
  command
      .add_option(
          "DATA", options.data,
          "A folder of images with a folder per class, or with train/ "
          "and val/ of that form, or of images alone; or " +
              listed({known_datasets().begin(), known_datasets().end()}, "or"))
      ->type_name("");
  add_data_dir_flag(command, options.data_dir);
  command.add_flag_callback(
      "--check", [&options] { options.depth = ExamineDepth::kPixels; },
      "Decode every image, and list those that are broken");
  command
      .add_option("--json", options.json,
                  "Write the same there as JSON; -: to standard output, "
                  "instead of the table")
      ->type_name("FILE");
  command
      .add_option("--contact-sheet", options.contact_sheet,
                  "Draw samples of the first split there, as PNG: 8 of each "
                  "class, up to 10 classes")
      ->type_name("FILE.png");
  command
      .add_option("--augment", options.augment,
                  "Transforms whose effect the sheet shows beside each "
                  "sample, up to where images become numbers")
      ->type_name("TRANSFORMS");
  command
      .add_option("--seed", options.seed,
                  "Another seed, other samples and random transforms")
      ->check(whole_number(0))
      ->capture_default_str();
}

void complete_show_data_options(ShowDataOptions& options, int cores) {
  if (options.data.empty())
    throw InvalidArgument(
        "show needs a dataset: lockstep data show DIR, or lockstep data show "
        "fashion-mnist");
  options.threads = std::max(cores, 1);
  check_is_there(options);
  check_augment(options);
  if (options.json != "-") check_file_to_write("--json", options.json);
  for (const std::string& output : {options.json, options.contact_sheet})
    check_spares_data(output,
                      is_known(options.data) ? options.data_dir : options.data);
  if (options.contact_sheet.empty()) return;
  if (!options.contact_sheet.ends_with(".png"))
    throw InvalidArgument(
        fmt::format("--contact-sheet is \"{}\", but a sheet is a PNG file: let "
                    "its name end in .png",
                    options.contact_sheet));
  check_file_to_write("--contact-sheet", options.contact_sheet);
}

ShownData show_data(const ShowDataOptions& options) {
  const Splits splits = is_known(options.data) ? examine_known(options)
                                               : examine_folders(options);
  ShownData shown{.text = to_text(splits.report),
                  .intact = splits.report.is_intact()};
  if (!options.contact_sheet.empty())
    shown.text += write_contact_sheet(options, splits.first_samples());
  const std::string json = to_json(splits.report);
  if (options.json == "-")
    shown.text = json;
  else if (!options.json.empty())
    replace_text_file(options.json, json);
  return shown;
}

}  // namespace lockstep
