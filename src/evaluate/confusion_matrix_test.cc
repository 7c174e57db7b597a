#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/evaluate/evaluation.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;

// 4 samples of class 0, 3 predicted right; 2 of class 1, 1 predicted right;
// none of class 2, which is predicted once.
ConfusionMatrix small_matrix() {
  ConfusionMatrix matrix(3);
  for (int i = 0; i < 3; ++i) matrix.add(0, 0);
  matrix.add(0, 2);
  matrix.add(1, 1);
  matrix.add(1, 0);
  return matrix;
}

TEST(ConfusionMatrix, HasARowForEachLabel) {
  EXPECT_THAT(small_matrix().counts(), ElementsAre(3, 0, 1, 1, 1, 0, 0, 0, 0));
  EXPECT_EQ(small_matrix().count(0, 2), 1);
}

TEST(ConfusionMatrix, GivesSharesPerClassAndOfAll) {
  const ConfusionMatrix matrix = small_matrix();
  EXPECT_EQ(matrix.samples(), 6);
  EXPECT_EQ(matrix.correct(), 4);
  EXPECT_DOUBLE_EQ(matrix.accuracy(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(matrix.recall(0), 3.0 / 4);
  EXPECT_DOUBLE_EQ(matrix.precision(0), 3.0 / 4);
  EXPECT_DOUBLE_EQ(matrix.recall(1), 1.0 / 2);
  EXPECT_DOUBLE_EQ(matrix.precision(1), 1.0);
  EXPECT_DOUBLE_EQ(matrix.f1(1), 2.0 / 3);
}

TEST(ConfusionMatrix, GivesNoNumberWhereThereIsNothingToShare) {
  const ConfusionMatrix matrix = small_matrix();
  EXPECT_TRUE(std::isnan(matrix.recall(2)));  // no sample has that class
  EXPECT_DOUBLE_EQ(matrix.precision(2), 0);   // one wrong prediction
  EXPECT_DOUBLE_EQ(matrix.f1(2), 0);
  EXPECT_TRUE(std::isnan(ConfusionMatrix(2).accuracy()));
  EXPECT_TRUE(std::isnan(ConfusionMatrix(2).f1(1)));
}

TEST(ConfusionMatrix, RefusesClassesThatThereAreNot) {
  ConfusionMatrix matrix(2);
  EXPECT_THROW(matrix.add(2, 0), InvalidArgument);
  EXPECT_THROW(matrix.add(0, -1), InvalidArgument);
  EXPECT_EQ(matrix.samples(), 0);
  EXPECT_THROW(ConfusionMatrix(0), InvalidArgument);
}

}  // namespace
}  // namespace lockstep
