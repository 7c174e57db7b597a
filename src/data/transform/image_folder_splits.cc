#include "src/data/transform/image_folder_splits.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <span>
#include <system_error>
#include <utility>
#include <variant>

#include "lockstep/base/error.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/check_transform.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

using Names = std::span<const std::string_view>;
constexpr std::array<std::string_view, 1> kLearned{"train"};
constexpr std::array<std::string_view, 4> kMeasuredInTraining{
    "val", "valid", "validation", "test"};
constexpr std::array<std::string_view, 4> kMeasuredInEvaluation{
    "test", "val", "valid", "validation"};

constexpr std::string_view kNameTheFolder =
    "  next:    name the folder that holds train/CLASS/IMAGE and "
    "val/CLASS/IMAGE with --data-dir";

// Test images are resized to it; their centre has the side `size`.
constexpr std::int64_t resized_side(std::int64_t size) {
  return (size * 8 + 3) / 7;
}
static_assert(resized_side(kMostImageSide) <= transforms::kMostPixelsOfASide);
static_assert(resized_side(kMostImageSide + 1) >
              transforms::kMostPixelsOfASide);

// "train, val (without folders of classes)".
std::string splits_in_words(const fs::path& directory) {
  std::vector<std::string> found;
  std::error_code unreadable;
  for (const std::string_view name : kSplitFolders) try {
      if (holds_folders(directory / name))
        found.emplace_back(name);
      else if (fs::is_directory(directory / name, unreadable))
        found.push_back(fmt::format("{} (without folders of classes)", name));
    } catch (const SystemError&) {
      found.push_back(fmt::format("{} (which cannot be listed)", name));
    }
  return found.empty() ? fmt::format("none of the folders {}",
                                     fmt::join(kSplitFolders, ", "))
                       : fmt::format("{}", fmt::join(found, ", "));
}

// The first of the folders `names` that is a split of `directory`.
fs::path split_folder(const fs::path& directory, Names names) {
  if (directory.empty())
    throw InvalidArgument(fmt::format(
        "cannot read an image folder without its place\n{}", kNameTheFolder));
  std::error_code unreadable;
  if (!fs::is_directory(directory, unreadable))
    throw InvalidArgument(fmt::format("there is no folder \"{}\"\n{}",
                                      directory.string(), kNameTheFolder));
  for (const std::string_view name : names)
    if (holds_folders(directory / name)) return directory / name;
  throw InvalidArgument(
      fmt::format("cannot use \"{}\": it has no folder {} that holds a folder "
                  "per class\n"
                  "  found:   {}\n{}",
                  directory.string(), fmt::join(names, " or "),
                  splits_in_words(directory), kNameTheFolder));
}

[[noreturn]] void refuse_normalization(const std::string& text) {
  throw InvalidArgument(fmt::format(
      "cannot augment with \"{}\": training images are normalised once, as "
      "test images are\n"
      "  next:    leave normalize out of --augment",
      text));
}

// What is measured is measured on the pixels that other programs see.
constexpr ImageFolderOptions kExactPixels{.scaling = DecodeScaling::kExact};

std::shared_ptr<const ImageFolder> open_folder(
    const fs::path& folder, const std::string& transforms,
    const ImageFolderOptions& options = kExactPixels,
    const Normalize& normalize = imagenet_normalize()) {
  return std::make_shared<const ImageFolder>(
      folder, normalized(transforms, normalize), options);
}

ImageDataset facts_of(const ImageFolder& folder) {
  const auto [channels, height, width] = folder.shape();
  const Normalize normalize = imagenet_normalize();
  return {
      .title = std::string(kImageFolderTitle),
      .count = 0,
      .channels = channels,
      .height = height,
      .width = width,
      .images = {},
      .labels = {},
      .class_names = {folder.class_names().begin(), folder.class_names().end()},
      .mean = normalize.mean,
      .standard_deviation = normalize.standard_deviation};
}

// The first name that `names` have and `others` have not; both are sorted.
std::optional<std::string> first_missing(std::span<const std::string> names,
                                         std::span<const std::string> others) {
  for (const std::string& name : names)
    if (!std::ranges::binary_search(others, name)) return name;
  return std::nullopt;
}

void check_classes(const ImageFolder& has, const fs::path& folder,
                   const ImageFolder& lacks, const fs::path& other) {
  const auto odd = first_missing(has.class_names(), lacks.class_names());
  if (!odd) return;
  throw InvalidArgument(
      fmt::format("cannot use \"{}\": only one of its two splits has the class "
                  "\"{}\": {} has it, {} does not\n"
                  "  next:    give the folders of training and of test images "
                  "the same classes",
                  folder.parent_path().string(), *odd,
                  folder.filename().string(), other.filename().string()));
}

}  // namespace

bool holds_folders(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code unknown;  // a link to nothing is no folder
    if (entry->is_directory(unknown)) return true;
  }
  if (error && error != std::errc::no_such_file_or_directory &&
      error != std::errc::not_a_directory)
    throw SystemError(fmt::format("cannot list {}", folder.string()),
                      error.value());
  return false;
}

std::vector<std::string> split_folders(const fs::path& directory) {
  std::vector<std::string> found;
  for (const std::string_view name : kSplitFolders)
    if (holds_folders(directory / name)) found.emplace_back(name);
  return found;
}

std::string evaluation_text(std::int64_t size) {
  return fmt::format("resize({}) | center_crop({})", resized_side(size), size);
}

Compose normalized(const std::string& text, const Normalize& normalize) {
  std::vector<Transform> all = Compose(text).transforms();
  const auto end = std::ranges::find_if(all, [](const Transform& transform) {
    return std::holds_alternative<Normalize>(transform) ||
           std::holds_alternative<RandomErasing>(transform);
  });
  const auto* given =
      end == all.end() ? nullptr : std::get_if<Normalize>(&*end);
  if (given == nullptr)
    all.insert(end, normalize);
  else if (given->mean != normalize.mean ||
           given->standard_deviation != normalize.standard_deviation)
    refuse_normalization(text);
  const auto normalizes = [](const Transform& transform) {
    return std::holds_alternative<Normalize>(transform);
  };
  if (std::ranges::count_if(all, normalizes) != 1) refuse_normalization(text);
  return Compose(std::move(all));
}

FolderSplits load_folder_splits(const fs::path& directory,
                                const FolderSplitsOptions& options) {
  const fs::path learned = split_folder(directory, kLearned);
  const fs::path measured = split_folder(directory, kMeasuredInTraining);
  const auto train =
      open_folder(learned, options.train_transforms,
                  {.scaling = options.train_scaling, .seed = options.seed});
  const auto test = open_folder(measured, evaluation_text(options.size));
  check_classes(*train, learned, *test, measured);
  check_classes(*test, measured, *train, learned);
  return {.facts = facts_of(*test),
          .train = train,
          .test = test,
          .test_folder = measured.filename().string()};
}

FolderImages load_folder_split(const fs::path& directory, Split split,
                               std::int64_t size) {
  const fs::path folder = split_folder(
      directory,
      split == Split::kTrain ? Names(kLearned) : Names(kMeasuredInEvaluation));
  const auto samples = open_folder(folder, evaluation_text(size));
  return {.facts = facts_of(*samples),
          .samples = samples,
          .split = folder.filename().string()};
}

FolderImages load_unlabelled_folder(const fs::path& folder,
                                    const ImageDataset& like) {
  // Images of other data sets have no border that a crop would remove.
  const std::string transforms =
      like.title == kImageFolderTitle
          ? evaluation_text(like.height)
          : fmt::format("resize(({}, {}))", like.height, like.width);
  ImageFolderOptions options = kExactPixels;
  options.labelled = false;
  if (like.channels == 1) options.decode.color = ImageColor::kGray;
  FolderImages found{
      .facts = like,
      .samples = open_folder(folder, transforms, options,
                             {like.mean, like.standard_deviation})};
  found.facts.title = folder.string();
  found.facts.count = found.samples->size();
  return found;
}

}  // namespace lockstep
