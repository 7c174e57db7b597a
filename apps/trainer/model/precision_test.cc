#include "apps/trainer/model/precision.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "src/base/testing/error_text.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

at::ScalarType type_of_a_product() {
  return at::ones({2, 2}).matmul(at::ones({2, 2})).scalar_type();
}

TEST(MixedPrecision, IsThatOfProductsInItsScopeAndThreadOnly) {
  EXPECT_EQ(type_of_a_product(), at::kFloat);
  {
    const MixedPrecision outer(Precision::kBfloat16);
    {
      const MixedPrecision inner(Precision::kBfloat16);
      EXPECT_EQ(type_of_a_product(), at::kBFloat16);
    }
    EXPECT_EQ(type_of_a_product(), at::kBFloat16);
    at::ScalarType elsewhere = at::kBFloat16;
    std::thread([&] { elsewhere = type_of_a_product(); }).join();
    EXPECT_EQ(elsewhere, at::kFloat);
  }
  EXPECT_EQ(type_of_a_product(), at::kFloat);
}

TEST(MixedPrecision, OfFloat16EndsInTheOneAroundIt) {
  const MixedPrecision outer(Precision::kBfloat16);
  {
    const MixedPrecision inner(Precision::kFloat16);
    EXPECT_EQ(type_of_a_product(), at::kHalf);
  }
  EXPECT_EQ(type_of_a_product(), at::kBFloat16);
}

TEST(MixedPrecision, OfFloat32LeavesAutocastAlone) {
  const MixedPrecision scope(Precision::kFloat32);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(type_of_a_product(), at::kFloat);
}

TEST(MixedPrecision, SeesWeightsThatHaveChangedSinceTheLastScope) {
  at::Tensor weight = at::ones({2, 2}).requires_grad_(true);
  const auto product = [&] {
    const MixedPrecision scope(Precision::kBfloat16);
    return at::ones({2, 2}).matmul(weight).sum().item<double>();
  };
  EXPECT_EQ(product(), 8);
  weight.data().fill_(3);
  EXPECT_EQ(product(), 24);
}

TEST(Precision, HasANameAndNoOther) {
  for (const auto name : names_in(kPrecisions)) parse_precision(name);
  EXPECT_EQ(parse_precision("bfloat16"), Precision::kBfloat16);
  EXPECT_EQ(parse_precision("float16"), Precision::kFloat16);
  EXPECT_THAT(error_text([] { parse_precision("bfloat1"); }),
              HasSubstr("did you mean \"bfloat16\""));
}

}  // namespace
}  // namespace lockstep
