// Tests of the reports of an evaluation: text, JSON and CSV.
#include "src/evaluate/evaluation_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/base/error.h"
#include "src/evaluate/prediction_file.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// 1,500 of class 0, 1,200 predicted right; 2 of class 1, both right; none of
// class 2.
Evaluation small_evaluation() {
  ConfusionMatrix matrix(3);
  matrix.counts() = {1200, 300, 0, 0, 2, 0, 0, 0, 0};
  return {.confusion = matrix,
          .loss = 751,
          .duration = std::chrono::milliseconds(500)};
}

EvaluationSubject subject() {
  return {.model = "mlp",
          .file = "m.safetensors",
          .trained_on = "MNIST",
          .dataset = "MNIST",
          .split = "test",
          .ranks = 2,
          .class_names = {"cat", "dog", "none at all"}};
}

TEST(EvaluationReport, IsAnAlignedTableForPeople) {
  EXPECT_EQ(to_text(small_evaluation(), subject()),
            "mlp from m.safetensors\n"
            "MNIST, test set: 1,502 images on 2 ranks\n"
            "\n"
            "loss 0.5000 · accuracy 80.03 % · 3,004 images/s\n"
            "\n"
            "class        images    recall  precision       f1\n"
            "cat           1,500   80.00 %   100.00 %  88.89 %\n"
            "dog               2  100.00 %     0.66 %   1.32 %\n"
            "none at all       0         -          -        -\n"
            "\n"
            "A row is a class, a column the class that was predicted:\n"
            "\n"
            "confusion      cat  dog  none at all\n"
            "cat          1,200  300            0\n"
            "dog              0    2            0\n"
            "none at all      0    0            0\n");
}

TEST(EvaluationReport, NumbersTheColumnsOfNamesThatDoNotFit) {
  constexpr int kClasses = 11;
  Evaluation evaluation{.confusion = ConfusionMatrix(kClasses),
                        .duration = std::chrono::seconds(1)};
  EvaluationSubject many = subject();
  many.class_names.assign(kClasses, "a long name");
  evaluation.confusion.add(0, 10);
  const std::string text = to_text(evaluation, many);
  EXPECT_THAT(text, HasSubstr("confusion       0  1  2  3  4  5  6  7  8  9  "
                              "10\n 0 a long name  0  0"));
  EXPECT_THAT(text, HasSubstr("\n10 a long name  0  0"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_LE(line.size(), 82u) << line;  // a dot has two bytes
}

TEST(EvaluationReport, OfManyClassesIsAboutAPage) {
  constexpr int kClasses = 1000;
  Evaluation evaluation{.confusion = ConfusionMatrix(kClasses),
                        .duration = std::chrono::seconds(1)};
  EvaluationSubject many = subject();
  many.class_names.clear();
  for (int i = 0; i < kClasses; ++i) {
    many.class_names.push_back("n" + std::to_string(i));
    for (int image = 0; image < 3; ++image) evaluation.confusion.add(i, i);
  }
  evaluation.confusion.add(7, 8);
  for (int image = 0; image < 5; ++image) evaluation.confusion.add(600, 11);
  const std::string text = to_text(evaluation, many);
  EXPECT_LT(std::ranges::count(text, '\n'), 60);
  EXPECT_THAT(text,
              HasSubstr("The 20 of 1,000 classes with the lowest f1; "
                        "--json FILE has all:\n\n"
                        "class  images    recall  precision        f1\n"
                        "n11         3  100.00 %    37.50 %   54.55 %\n"
                        "n600        8   37.50 %   100.00 %   54.55 %\n"));
  EXPECT_THAT(text, HasSubstr("confused most often:\n\n"
                              "class  predicted as  images\n"
                              "n600   n11                5\n"
                              "n7     n8                 1\n"));
}

TEST(EvaluationReport, SaysHowManyImagesWereLeftOut) {
  Evaluation broken = small_evaluation();
  broken.broken = "1 image was broken and left out: a.jpg";
  EXPECT_THAT(
      to_text(broken, subject()),
      HasSubstr("images/s\n1 image was broken and left out: a.jpg\n\n"));
  EXPECT_EQ(nlohmann::json::parse(to_json(broken, subject()))["broken"],
            *broken.broken);
}

TEST(EvaluationReport, SaysWhereTheModelIsFromOnlyIfThatIsElsewhere) {
  EXPECT_THAT(to_text(small_evaluation(), subject()),
              Not(HasSubstr("trained on")));
  EvaluationSubject other = subject();
  other.trained_on = "Fashion-MNIST";
  other.ranks = 1;
  EXPECT_THAT(to_text(small_evaluation(), other),
              HasSubstr("m.safetensors, trained on Fashion-MNIST\n"));
  EXPECT_THAT(to_text(small_evaluation(), other), HasSubstr("on 1 rank\n"));
  other.trained_on = "";
  EXPECT_THAT(to_text(small_evaluation(), other), Not(HasSubstr("trained on")));
}

TEST(EvaluationReport, IsJsonForPrograms) {
  const auto json =
      nlohmann::json::parse(to_json(small_evaluation(), subject()));
  EXPECT_EQ(json["images"], 1502);
  EXPECT_DOUBLE_EQ(json["loss"].get<double>(), 0.5);
  EXPECT_DOUBLE_EQ(json["accuracy"].get<double>(), 1202.0 / 1502);
  EXPECT_DOUBLE_EQ(json["images_per_second"].get<double>(), 3004);
  EXPECT_EQ(json["confusion_matrix"],
            nlohmann::json({{1200, 300, 0}, {0, 2, 0}, {0, 0, 0}}));
  EXPECT_EQ(json["classes"][1]["name"], "dog");
  EXPECT_DOUBLE_EQ(json["classes"][1]["recall"].get<double>(), 1);
  EXPECT_TRUE(json["classes"][2]["recall"].is_null());
}

TEST(EvaluationReport, IsJsonAlsoWhereTheLossIsNoNumberAndTheFileNoText) {
  Evaluation broken = small_evaluation();
  broken.loss = std::numeric_limits<double>::quiet_NaN();
  EvaluationSubject odd = subject();
  odd.file = "m\xff";
  odd.trained_on = "";
  const auto json = nlohmann::json::parse(to_json(broken, odd));
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["trained_on"].is_null());
}

// A division of 0 by 0 gives one with a sign on x86.
TEST(EvaluationReport, WritesNoSignBeforeALossThatIsNoNumber) {
  for (const double sign : {1., -1.}) {
    Evaluation broken = small_evaluation();
    broken.loss = std::copysign(std::numeric_limits<double>::quiet_NaN(), sign);
    EXPECT_THAT(to_text(broken, subject()), HasSubstr("\nloss nan ·"));
  }
}

TEST(PredictionFile, WritesNoSignBeforeAProbabilityThatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::int64_t> predicted{0, 0};
  const std::vector<float> probability{nan, std::copysign(nan, -1.f)};
  EXPECT_EQ(
      to_csv(
          {.labels = {}, .predicted = predicted, .probability = probability}),
      "index,predicted,probability\n"
      "0,0,nan\n"
      "1,0,nan\n");
}

TEST(PredictionFile, HasALineForEachSampleThatGivesBackTheSameFloats) {
  const std::vector<std::int64_t> labels{9, 0}, predicted{9, 1};
  const std::vector<float> probability{0.1f, 1};
  EXPECT_EQ(to_csv({.labels = labels,
                    .predicted = predicted,
                    .probability = probability}),
            "index,label,predicted,probability\n"
            "0,9,9,0.1\n"
            "1,0,1,1\n");
}

TEST(PredictionFile, HasAColumnForEachClassIfAskedFor) {
  const std::vector<std::int64_t> labels{0}, predicted{1};
  const std::vector<float> probability{0.75}, probabilities{0.25, 0.75};
  EXPECT_EQ(to_csv({.labels = labels,
                    .predicted = predicted,
                    .probability = probability,
                    .probabilities = probabilities,
                    .class_names = {"a, or \"b\"", "T-shirt/top"}}),
            "index,label,predicted,class,probability,\"a, or \"\"b\"\"\","
            "T-shirt/top\n"
            "0,0,1,T-shirt/top,0.75,0.25,0.75\n");
}

TEST(PredictionFile, NamesThePredictedClass) {
  const std::vector<std::int64_t> predicted{1, 0};
  const std::vector<float> probability{0.75, 0.5};
  EXPECT_EQ(to_csv({.labels = {},
                    .predicted = predicted,
                    .probability = probability,
                    .class_names = {"a, or \"b\"", "T-shirt/top"}}),
            "index,predicted,class,probability\n"
            "0,1,T-shirt/top,0.75\n"
            "1,0,\"a, or \"\"b\"\"\",0.5\n");
}

TEST(PredictionFile, HasAColumnForThePathsOfFiles) {
  const std::vector<std::int64_t> predicted{1, 0};
  const std::vector<float> probability{0.75, 0.5};
  EXPECT_EQ(to_csv({.labels = {},
                    .predicted = predicted,
                    .probability = probability,
                    .paths = {"a, b/1.png", "c.png"}}),
            "index,path,predicted,probability\n"
            "0,\"a, b/1.png\",1,0.75\n"
            "1,c.png,0,0.5\n");
}

TEST(PredictionFile, RefusesColumnsOfDifferentLengths) {
  const std::vector<std::int64_t> labels{0, 1}, predicted{1};
  const std::vector<float> probability{0.75, 1};
  EXPECT_THROW(to_csv({.labels = labels,
                       .predicted = predicted,
                       .probability = probability}),
               InvalidArgument);
  EXPECT_THROW(to_csv({.labels = labels,
                       .predicted = labels,
                       .probability = probability,
                       .probabilities = probability,
                       .class_names = {"a", "b"}}),
               InvalidArgument);
  EXPECT_THROW(to_csv({.labels = {},
                       .predicted = labels,
                       .probability = probability,
                       .paths = {"a"}}),
               InvalidArgument);
}

}  // namespace
}  // namespace lockstep
