#include "src/train/evaluate/evaluation_report.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <sstream>

#include "src/base/report_text.h"

namespace lockstep {
namespace {

constexpr std::size_t kLineWidth = 80;
constexpr TableLayout kNamesThenNumbers{.left_aligned = 1};

using Line = std::vector<std::string>;
using Json = nlohmann::ordered_json;

std::string share_text(double share) { return percent(share, 2); }

std::string class_table(const ConfusionMatrix& matrix,
                        const std::vector<std::string>& names) {
  std::vector<Line> lines{{"class", "images", "recall", "precision", "f1"}};
  for (std::int64_t i = 0; i < matrix.classes(); ++i)
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
       << " images/s\n\n";
  text << class_table(matrix, subject.class_names)
       << "\nA row is a class, a column the class that was predicted:\n\n"
       << confusion_table(matrix, subject.class_names);
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
  const Json all{{"model", subject.model},
                 {"file", subject.file},
                 {"trained_on", trained_on},
                 {"dataset", subject.dataset},
                 {"split", subject.split},
                 {"ranks", subject.ranks},
                 {"images", matrix.samples()},
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
