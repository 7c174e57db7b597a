// What a pass of a model over a data set came to, and how it is told to people
// and programs.
//
// Threads: values and pure functions.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/train/confusion_matrix.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

struct Evaluation {
  ConfusionMatrix confusion;
  double loss = 0;  // the sum of the samples' losses
  // From the pass's begin to the end of the merge, on this rank.
  std::chrono::duration<double> duration{};

  Metrics metrics() const {
    return {loss, confusion.correct(), confusion.samples()};
  }
  double images_per_second() const {
    return static_cast<double>(confusion.samples()) / duration.count();
  }
};

// What was evaluated on what, for the report.
struct EvaluationSubject {
  std::string model;       // "convnet"
  std::string file;        // where it was read from
  std::string trained_on;  // the data set's title; empty where nobody knows
  std::string dataset;     // "Fashion-MNIST"
  std::string split;       // "test"
  int ranks = 1;
  std::vector<std::string> class_names;  // one a class of the evaluation
};

// A head, a table of the classes and the confusion matrix, in lines of at most
// 80 columns where there are no more than ten classes. The matrix's columns
// have the classes' names where these fit, else their numbers.
std::string to_text(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

// An object of JSON; docs/guides/evaluate.md lists its members. A share of
// nothing is null.
std::string to_json(const Evaluation& evaluation,
                    const EvaluationSubject& subject);

// "12,345".
std::string with_commas(std::int64_t number);

// "91.82 %"; "-" for no number.
std::string percent(double share);

}  // namespace lockstep
