// The results of an evaluation, as text for people and as JSON for programs.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/train/evaluate/confusion_matrix.h"
#include "lockstep/train/evaluate/metrics.h"

namespace lockstep {

struct Evaluation {
  ConfusionMatrix confusion;
  double loss = 0;  // the sum of the samples' losses
  // From the beginning of the pass to the end of the merge, on this rank.
  std::chrono::duration<double> duration{};

  Metrics metrics() const {
    return {loss, confusion.correct(), confusion.samples()};
  }
  double images_per_second() const {
    return static_cast<double>(confusion.samples()) / duration.count();
  }
};

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
// names where these fit, else their numbers.
std::string to_text(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

// A JSON object; docs/guides/evaluate.md lists its members. A share that is NaN
// becomes null.
std::string to_json(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

// "12,345".
std::string with_commas(std::int64_t number);

// "91.82 %"; "-" for NaN.
std::string percent(double share);

}  // namespace lockstep
