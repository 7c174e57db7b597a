#include "src/evaluate/prediction_file.h"

#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"

namespace lockstep {
namespace {

template <class Number>
void append(std::string& text, Number number) {
  std::array<char, 32> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  text.append(digits.data(), end);
}

// NaN may have a sign, which is the processor's choice.
float without_sign_of_nan(float number) {
  return std::isnan(number) ? std::numeric_limits<float>::quiet_NaN() : number;
}

// Quoted where it would otherwise parse as more than one field.
std::string field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos)
    return std::string(text);
  std::string quoted = "\"";
  for (const char c : text) quoted.append(c == '"' ? 2 : 1, c);
  return quoted + '"';
}

void check(const PredictionTable& table) {
  const std::size_t samples = table.predicted.size();
  const std::size_t all = table.probabilities.size();
  if ((!table.labels.empty() && table.labels.size() != samples) ||
      table.probability.size() != samples ||
      (!table.paths.empty() && table.paths.size() != samples) ||
      (all != 0 && all != samples * table.class_names.size()))
    throw InvalidArgument(
        "a table of predictions has columns of different lengths: " +
        std::to_string(table.labels.size()) + " labels, " +
        std::to_string(samples) + " predictions, " +
        std::to_string(table.probability.size()) +
        " probabilities of these, and " + std::to_string(all) + " of the " +
        std::to_string(table.class_names.size()) + " classes");
}

}  // namespace

std::string to_csv(const PredictionTable& table) {
  check(table);
  const bool labelled = !table.labels.empty();
  std::string text = "index";
  if (!table.paths.empty()) text += ",path";
  if (labelled) text += ",label";
  const bool named = !table.class_names.empty();
  text += named ? ",predicted,class,probability" : ",predicted,probability";
  const std::size_t more =
      table.probabilities.empty() ? 0 : table.class_names.size();
  for (std::size_t i = 0; i < more; ++i)
    text += "," + field(table.class_names[i]);
  text += "\n";
  for (std::size_t sample = 0; sample < table.predicted.size(); ++sample) {
    append(text, sample);
    if (!table.paths.empty()) text += "," + field(table.paths[sample]);
    const std::int64_t predicted = table.predicted[sample];
    if (predicted == kNoLabel) {
      text.append((labelled ? 3U : 2U) + (named ? 1U : 0U) + more, ',');
      text += "\n";
      continue;
    }
    if (labelled) append(text += ",", table.labels[sample]);
    append(text += ",", predicted);
    if (named)
      text += "," + field(table.class_names.at(static_cast<size_t>(predicted)));
    append(text += ",", without_sign_of_nan(table.probability[sample]));
    for (const float share : table.probabilities.subspan(sample * more, more))
      append(text += ",", without_sign_of_nan(share));
    text += "\n";
  }
  return text;
}

}  // namespace lockstep
