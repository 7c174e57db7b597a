#include "src/evaluate/evaluation_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "src/base/report_text.h"

namespace lockstep {
namespace {

constexpr std::size_t kLineWidth = 80;
constexpr TableLayout kNamesThenNumbers{.left_aligned = 1};

using Line = std::vector<std::string>;
using Json = nlohmann::ordered_json;

std::string share_text(double share) { return percent(share, 2); }

// Of the classes `shown`.
std::string class_table(const ConfusionMatrix& matrix,
                        const std::vector<std::string>& names,
                        const std::vector<std::int64_t>& shown) {
  std::vector<Line> lines{{"class", "images", "recall", "precision", "f1"}};
  for (const std::int64_t i : shown)
    lines.push_back(
        {names[static_cast<std::size_t>(i)], with_thousands(matrix.labelled(i)),
         share_text(matrix.recall(i)), share_text(matrix.precision(i)),
         share_text(matrix.f1(i))});
  return aligned_table(lines, kNamesThenNumbers);
}

std::string confusion_table(const ConfusionMatrix& matrix,
                            const std::vector<std::string>& rows,
                            const std::vector<std::string>& columns) {
  std::vector<Line> lines{{"confusion"}};
  lines[0].insert(lines[0].end(), columns.begin(), columns.end());
  for (std::int64_t i = 0; i < matrix.classes(); ++i) {
    lines.push_back({rows[static_cast<std::size_t>(i)]});
    for (std::int64_t j = 0; j < matrix.classes(); ++j)
      lines.back().push_back(with_thousands(matrix.count(i, j)));
  }
  return aligned_table(lines, kNamesThenNumbers);
}

// With the classes' names as column headers, or with numbers.
std::string confusion_table(const ConfusionMatrix& matrix,
                            const std::vector<std::string>& names) {
  std::string table = confusion_table(matrix, names, names);
  if (table.find('\n') <= kLineWidth) return table;
  std::vector<std::string> numbers, rows;
  const std::size_t digits = std::to_string(names.size() - 1).size();
  for (std::size_t i = 0; i < names.size(); ++i) {
    numbers.push_back(std::to_string(i));
    rows.push_back(std::string(digits - numbers[i].size(), ' ') + numbers[i] +
                   " " + names[i]);
  }
  return confusion_table(matrix, rows, numbers);
}

// The classes with the lowest f1, the lowest first; those without images and
// predictions have none.
std::vector<std::int64_t> worst_classes(const ConfusionMatrix& matrix) {
  std::vector<std::pair<double, std::int64_t>> known;
  for (std::int64_t i = 0; i < matrix.classes(); ++i)
    if (const double f1 = matrix.f1(i); std::isfinite(f1))
      known.emplace_back(f1, i);
  const auto count = std::min(std::ssize(known), std::ptrdiff_t{kMostClasses});
  std::ranges::partial_sort(known, known.begin() + count);
  std::vector<std::int64_t> worst;
  for (std::ptrdiff_t i = 0; i < count; ++i)
    worst.push_back(known[static_cast<std::size_t>(i)].second);
  return worst;
}

// The pairs of classes that were confused most often.
std::string most_confused(const ConfusionMatrix& matrix,
                          const std::vector<std::string>& names) {
  struct Pair {
    std::int64_t count, label, predicted;
  };
  std::vector<Pair> pairs;
  for (std::int64_t i = 0; i < matrix.classes(); ++i)
    for (std::int64_t j = 0; j < matrix.classes(); ++j)
      if (const auto count = matrix.count(i, j); i != j && count > 0)
        pairs.push_back({count, i, j});
  std::ranges::stable_sort(pairs, std::greater(), &Pair::count);
  if (std::ssize(pairs) > kMostClasses) pairs.resize(kMostClasses);
  std::vector<Line> lines{{"class", "predicted as", "images"}};
  for (const Pair& pair : pairs)
    lines.push_back({names[static_cast<std::size_t>(pair.label)],
                     names[static_cast<std::size_t>(pair.predicted)],
                     with_thousands(pair.count)});
  return aligned_table(lines, {.left_aligned = 2});
}

std::string tables(const ConfusionMatrix& matrix,
                   const std::vector<std::string>& names) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(matrix.classes()));
  std::iota(all.begin(), all.end(), 0);
  if (matrix.classes() <= kMostClasses)
    return class_table(matrix, names, all) +
           "\nA row is a class, a column the class that was predicted:\n\n" +
           confusion_table(matrix, names);
  const std::vector<std::int64_t> worst = worst_classes(matrix);
  return "The " + std::to_string(worst.size()) + " of " +
         with_thousands(matrix.classes()) +
         " classes with the lowest f1; --json FILE has all:\n\n" +
         class_table(matrix, names, worst) +
         "\nWhat was confused most often:\n\n" + most_confused(matrix, names);
}

Json number(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

}  // namespace

std::string to_text(const Evaluation& evaluation,
                    const EvaluationSubject& subject) {
  const ConfusionMatrix& matrix = evaluation.confusion;
  std::ostringstream text;
  text << subject.model << " from " << subject.file;
  if (!subject.trained_on.empty() && subject.trained_on != subject.dataset)
    text << ", trained on " << subject.trained_on;
  text << "\n"
       << subject.dataset << ", " << subject.split
       << " set: " << with_thousands(matrix.samples()) << " images on "
       << subject.ranks << (subject.ranks == 1 ? " rank" : " ranks")
       << "\n\nloss " << fixed_number(evaluation.mean_loss(), 4)
       << " · accuracy " << share_text(matrix.accuracy()) << " · "
       << with_thousands(std::llround(evaluation.images_per_second()))
       << " images/s\n";
  if (evaluation.broken) text << *evaluation.broken << "\n";
  text << "\n";
  text << tables(matrix, subject.class_names);
  return text.str();
}

std::string to_json(const Evaluation& evaluation,
                    const EvaluationSubject& subject) {
  const ConfusionMatrix& matrix = evaluation.confusion;
  Json classes = Json::array();
  Json rows = Json::array();
  for (std::int64_t i = 0; i < matrix.classes(); ++i) {
    classes.push_back({{"name", subject.class_names[static_cast<size_t>(i)]},
                       {"images", matrix.labelled(i)},
                       {"recall", number(matrix.recall(i))},
                       {"precision", number(matrix.precision(i))},
                       {"f1", number(matrix.f1(i))}});
    Json row = Json::array();
    for (std::int64_t j = 0; j < matrix.classes(); ++j)
      row.push_back(matrix.count(i, j));
    rows.push_back(std::move(row));
  }
  const Json trained_on =
      subject.trained_on.empty() ? Json(nullptr) : Json(subject.trained_on);
  const Json all{
      {"model", subject.model},
      {"file", subject.file},
      {"trained_on", trained_on},
      {"dataset", subject.dataset},
      {"split", subject.split},
      {"ranks", subject.ranks},
      {"images", matrix.samples()},
      {"broken", evaluation.broken ? Json(*evaluation.broken) : Json(nullptr)},
      {"loss", number(evaluation.mean_loss())},
      {"accuracy", number(matrix.accuracy())},
      {"seconds", evaluation.duration.count()},
      {"images_per_second", number(evaluation.images_per_second())},
      {"classes", std::move(classes)},
      {"confusion_matrix", std::move(rows)}};
  // A path may hold any bytes.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep
