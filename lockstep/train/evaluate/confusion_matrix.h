// Counts how often a sample of one class was predicted to be of another.
//
// Counts of parts can be added, also over ranks.
//
// Errors:  InvalidArgument for a class outside 0 … classes - 1.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace lockstep {

class ConfusionMatrix {
 public:
  // For classes 0 … classes - 1, at least one.
  explicit ConfusionMatrix(std::int64_t classes);

  // Counts one sample.
  void add(std::int64_t label, std::int64_t predicted);

  std::int64_t classes() const { return classes_; }
  std::int64_t count(std::int64_t label, std::int64_t predicted) const {
    return counts_[place(label, predicted)];
  }
  // All counts, label by label.
  std::span<const std::int64_t> counts() const { return counts_; }
  std::vector<std::int64_t>& counts() { return counts_; }

  std::int64_t samples() const;
  std::int64_t correct() const;
  // Samples of the class, and samples predicted to be of it.
  std::int64_t labelled(std::int64_t label) const;
  std::int64_t predicted(std::int64_t label) const;

  // The share of all samples that is predicted right. This and the shares below
  // are NaN without samples to divide by.
  double accuracy() const;
  // Of the samples of the class, the share predicted right: its accuracy.
  double recall(std::int64_t label) const;
  // Of the samples predicted to be of the class, the share that is.
  double precision(std::int64_t label) const;
  // The harmonic mean of the two.
  double f1(std::int64_t label) const;

  friend bool operator==(const ConfusionMatrix&,
                         const ConfusionMatrix&) = default;

 private:
  std::size_t place(std::int64_t label, std::int64_t predicted) const;

  std::int64_t classes_;
  std::vector<std::int64_t> counts_;
};

}  // namespace lockstep
