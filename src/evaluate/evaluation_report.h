// The results of an evaluation, as text for people and as JSON for programs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/evaluate/evaluation.h"

namespace lockstep {

// The model and the data of the evaluation, for the report.
struct EvaluationSubject {
  std::string model;       // "convnet"
  std::string file;        // the model's file
  std::string trained_on;  // the data set's title; empty if unknown
  std::string dataset;     // "Fashion-MNIST"
  std::string split;       // "test"
  int ranks = 1;
  std::vector<std::string> class_names;  // one per class of the evaluation
};

// A header, a table of the classes and the confusion matrix, in lines of at
// most 80 columns for up to ten classes. The matrix's columns have the classes'
// names where these fit, else their numbers. Of more than kMostClasses classes
// it has those with the lowest f1, and in the place of the matrix the pairs
// that were confused most often: about a page.
inline constexpr std::int64_t kMostClasses = 20;
std::string to_text(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

// A JSON object; docs/guides/evaluate.md lists its members. A share that is NaN
// becomes null.
std::string to_json(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

}  // namespace lockstep
