// Predictions as CSV (RFC 4180), one line per sample.
//
//     index,label,predicted,class,probability,T-shirt/top,Trouser,…
//     0,9,9,Ankle boot,0.97136974,1.8160878e-05,…
//
// The class is the predicted one's name, if names are given. Samples that are
// files have a column "path" after the index. Without labels the label column
// is omitted. A sample of which nothing was predicted, because it is broken,
// has empty fields. Floating-point numbers are the shortest that parse to the
// same float32, so equal predictions give equal bytes.
//
// Errors:  InvalidArgument for columns of different lengths.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

// Columns; borrowed. `labels` may be empty, `predicted` is kNoLabel for a
// broken sample, `probability` is that of the predicted class, `probabilities`
// is empty or holds those of all classes, sample by sample.
struct PredictionTable {
  std::span<const std::int64_t> labels;
  std::span<const std::int64_t> predicted;
  std::span<const float> probability;
  std::span<const float> probabilities{};
  std::vector<std::string> class_names{};  // of all classes
  std::vector<std::string> paths{};  // of the samples' files; may be empty
};

// The whole file.
std::string to_csv(const PredictionTable& table);

}  // namespace lockstep
