#include <limits>
#include <numeric>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/evaluate/evaluation.h"

namespace lockstep {
namespace {

std::int64_t checked(std::int64_t classes) {
  if (classes >= 1) return classes;
  throw InvalidArgument("a confusion matrix cannot have " +
                        std::to_string(classes) + " classes; the minimum is 1");
}

double share(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return std::numeric_limits<double>::quiet_NaN();
  return static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

ConfusionMatrix::ConfusionMatrix(std::int64_t classes)
    : classes_(checked(classes)),
      counts_(static_cast<std::size_t>(classes * classes)) {}

std::size_t ConfusionMatrix::place(std::int64_t label,
                                   std::int64_t predicted) const {
  for (const std::int64_t number : {label, predicted})
    if (number < 0 || number >= classes_)
      throw InvalidArgument("no class " + std::to_string(number) +
                            "; classes are 0 to " +
                            std::to_string(classes_ - 1));
  return static_cast<std::size_t>(label * classes_ + predicted);
}

void ConfusionMatrix::add(std::int64_t label, std::int64_t predicted) {
  ++counts_[place(label, predicted)];
}

std::int64_t ConfusionMatrix::samples() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

std::int64_t ConfusionMatrix::correct() const {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < classes_; ++i) sum += count(i, i);
  return sum;
}

std::int64_t ConfusionMatrix::labelled(std::int64_t label) const {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < classes_; ++i) sum += count(label, i);
  return sum;
}

std::int64_t ConfusionMatrix::predicted(std::int64_t label) const {
  std::int64_t sum = 0;
  for (std::int64_t i = 0; i < classes_; ++i) sum += count(i, label);
  return sum;
}

double ConfusionMatrix::accuracy() const { return share(correct(), samples()); }

double ConfusionMatrix::recall(std::int64_t label) const {
  return share(count(label, label), labelled(label));
}

double ConfusionMatrix::precision(std::int64_t label) const {
  return share(count(label, label), predicted(label));
}

double ConfusionMatrix::f1(std::int64_t label) const {
  return share(2 * count(label, label), labelled(label) + predicted(label));
}

}  // namespace lockstep
