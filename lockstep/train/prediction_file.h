// Predictions as CSV (RFC 4180), a sample a line.
//
//     index,label,predicted,probability,T-shirt/top,Trouser,…
//     0,9,9,0.97136974,1.8160878e-05,…
//
// Without labels that column is not there. Numbers of floating point are the
// shortest that give back the same float32, so equal predictions are equal
// bytes.
//
// Threads: a pure function.
// Errors:  InvalidArgument for columns of different lengths.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// Columns; borrowed. `labels` are nothing where there are none, `probability`
// is that of the predicted class, `probabilities` those of all classes, those
// of one sample after the other, or nothing.
struct PredictionTable {
  std::span<const std::int64_t> labels;
  std::span<const std::int64_t> predicted;
  std::span<const float> probability;
  std::span<const float> probabilities{};
  std::vector<std::string> class_names{};
};

// All of the file.
std::string to_csv(const PredictionTable& table);

}  // namespace lockstep
