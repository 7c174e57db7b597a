#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/comm/training_loop.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

// Rank r has r batches of r + 1 samples, whose mean is 10 r: rank 0 has none.
TEST(MeanMetric, CountsEverySampleOnceWhereverItIs) {
  run_ranks("reference", 4, [](const std::shared_ptr<ProcessGroup>& group) {
    MeanMetric metric;
    const int rank = group->rank();
    for (int batch = 0; batch < rank; ++batch)
      metric.update(10 * rank, rank + 1);
    // 2 samples of 10, 6 of 20, 12 of 30.
    EXPECT_EQ(metric.compute(*group), 500.0 / 20);
    EXPECT_EQ(metric.compute(*group), 500.0 / 20) << "the second time";
    metric.reset();
    metric.update(rank);
    EXPECT_EQ(metric.compute(*group), 1.5);
  });
}

TEST(MeanMetric, IsNaNWithoutSamplesAndForAMeanThatIsNaN) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  run_ranks("reference", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    MeanMetric metric;
    metric.update(kNaN, 0);  // the mean of an empty batch
    EXPECT_TRUE(std::isnan(metric.compute(*group)));
    if (group->rank() == 1) metric.update(3, 2);
    EXPECT_EQ(metric.compute(*group), 3);
    if (group->rank() == 0) metric.update(kNaN, 1);
    EXPECT_TRUE(std::isnan(metric.compute(*group)));
  });
}

TEST(MeanMetric, RefusesAWeightThatIsNoNumberOfSamples) {
  MeanMetric metric;
  for (const double weight : {-1.0, std::nan(""), HUGE_VAL})
    EXPECT_THAT(error_text([&] { metric.update(1, weight); }),
                testing::HasSubstr("MeanMetric: the weight is"));
}

}  // namespace
}  // namespace lockstep
