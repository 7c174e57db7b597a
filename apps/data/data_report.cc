#include "apps/data/data_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "src/base/printable.h"
#include "src/base/report_text.h"
#include "src/base/version.h"

namespace lockstep {
namespace {

using JsonObject = nlohmann::ordered_json;
using TableRows = std::vector<std::vector<std::string>>;

constexpr std::size_t kMostListedClasses = 20;
constexpr std::size_t kListedAtEachEnd = 5;

std::string size_text(const ImageSize& size) {
  return fmt::format("{} x {}", size.width, size.height);
}

std::string kinds_text(const SplitReport& split) {
  std::vector<std::string> words;
  for (const auto& [kind, images] : split.kinds)
    words.push_back(split.kinds.size() == 1
                        ? kind
                        : fmt::format("{} {}", with_thousands(images), kind));
  return words.empty() ? "-" : fmt::format("{}", fmt::join(words, ", "));
}

std::string splits_table(const DataReport& report) {
  TableRows rows{
      {"split", "images", "classes", "kind", "smallest", "median", "largest"}};
  for (const SplitReport& split : report.splits) {
    rows.push_back({split.name, with_thousands(split.images),
                    split.classes.empty()
                        ? "-"
                        : with_thousands(std::ssize(split.classes)),
                    kinds_text(split)});
    if (!split.sizes) continue;
    for (const ImageSize& size :
         {split.sizes->smallest, split.sizes->median, split.sizes->largest})
      rows.back().push_back(size_text(size));
  }
  return aligned_table(rows, {.left = "  ", .left_aligned = 1});
}

// The images of a class in each split.
struct ClassRow {
  std::string name;
  std::vector<std::int64_t> images;
};

std::vector<ClassRow> class_rows(const DataReport& report) {
  std::map<std::string, std::vector<std::int64_t>> counts;
  for (std::size_t i = 0; i < report.splits.size(); ++i)
    for (const ClassCount& count : report.splits[i].classes) {
      auto& images = counts[count.name];
      images.resize(report.splits.size());
      images[i] = count.images;
    }
  // In the order of the labels, which is that of names for folders alone.
  std::vector<ClassRow> rows;
  for (const SplitReport& split : report.splits)
    for (const ClassCount& count : split.classes)
      if (auto found = counts.extract(count.name))
        rows.push_back({count.name, std::move(found.mapped())});
  return rows;
}

std::string classes_table(const DataReport& report) {
  std::vector<ClassRow> classes = class_rows(report);
  const std::size_t count = classes.size();
  if (count == 0) return "";
  const bool all = count <= kMostListedClasses;
  if (!all)
    std::ranges::stable_sort(classes, std::ranges::greater(),
                             [](const ClassRow& row) { return row.images; });
  TableRows rows{{"class"}};
  for (const SplitReport& split : report.splits)
    rows.front().push_back(split.name);
  for (std::size_t i = 0; i < count; ++i) {
    if (!all && i == kListedAtEachEnd) {
      rows.push_back(
          {fmt::format("... {} more", count - 2 * kListedAtEachEnd)});
      i = count - kListedAtEachEnd;
    }
    rows.push_back({printable(classes[i].name)});
    for (const std::int64_t images : classes[i].images)
      rows.back().push_back(images == 0 ? "-" : with_thousands(images));
  }
  return aligned_table(rows, {.left = "  ", .left_aligned = 1});
}

// A model that learns from one split and is measured on the other needs the
// same classes in both.
std::string class_difference(const DataReport& report) {
  std::string text;
  const std::vector<ClassRow> classes = class_rows(report);
  for (std::size_t i = 0; i < report.splits.size(); ++i) {
    std::vector<std::string> missing;
    for (const ClassRow& row : classes)
      if (row.images[i] == 0) missing.push_back(printable(row.name));
    if (!missing.empty())
      text += fmt::format(
          "{} lacks classes that another split has: {}\n"
          "  next:    give all splits the same class folders\n",
          report.splits[i].name, list_some(missing));
  }
  return text;
}

std::string numbers_text(const std::vector<float>& numbers) {
  std::vector<std::string> words;
  for (const float number : numbers)
    words.push_back(fmt::format("{:.4f}", number));
  return fmt::format("{}", fmt::join(words, ", "));
}

std::string broken_text(const DataReport& report) {
  if (report.is_intact())
    return report.checked ? "every image can be decoded\n" : "";
  std::int64_t count = 0;
  std::string lines;
  for (const SplitReport& split : report.splits)
    for (const BrokenImage& broken : split.broken) {
      ++count;
      lines += fmt::format("  {}: {}\n", printable(broken.path),
                           printable(broken.reason));
    }
  return fmt::format("broken images: {}\n{}", with_thousands(count), lines);
}

JsonObject size_object(const ImageSize& size) {
  return {{"width", size.width}, {"height", size.height}};
}

JsonObject split_object(const SplitReport& split) {
  JsonObject object{{"name", split.name},
                    {"images", split.images},
                    {"classes", JsonObject::array()},
                    {"kinds", split.kinds},
                    {"smallest", nullptr},
                    {"median", nullptr},
                    {"largest", nullptr},
                    {"broken", JsonObject::array()}};
  for (const ClassCount& count : split.classes)
    object["classes"].push_back(
        {{"name", count.name}, {"images", count.images}});
  if (split.sizes) {
    object["smallest"] = size_object(split.sizes->smallest);
    object["median"] = size_object(split.sizes->median);
    object["largest"] = size_object(split.sizes->largest);
  }
  for (const BrokenImage& broken : split.broken)
    object["broken"].push_back(
        {{"path", broken.path}, {"reason", broken.reason}});
  return object;
}

}  // namespace

bool DataReport::is_intact() const {
  return std::ranges::all_of(
      splits, [](const SplitReport& split) { return split.broken.empty(); });
}

std::string to_text(const DataReport& report) {
  std::string text = fmt::format("{}\n{}{}", printable(report.title),
                                 splits_table(report), classes_table(report));
  if (!report.mean.empty())
    text += fmt::format(
        "  lockstep train normalizes with\n"
        "    mean       {}\n    deviation  {}\n",
        numbers_text(report.mean), numbers_text(report.standard_deviation));
  return text + class_difference(report) + broken_text(report);
}

std::string to_json(const DataReport& report) {
  JsonObject object{{"version", version()},
                    {"data", report.title},
                    {"checked", report.checked},
                    {"splits", JsonObject::array()}};
  for (const SplitReport& split : report.splits)
    object["splits"].push_back(split_object(split));
  if (!report.mean.empty()) {
    object["mean"] = report.mean;
    object["standard_deviation"] = report.standard_deviation;
  }
  return object.dump(1, ' ', false, JsonObject::error_handler_t::replace) +
         "\n";
}

}  // namespace lockstep
