// Tests of gradients that are sent with 16 bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/hooked_weight.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

void expect_rounded_average(at::ScalarType type) {
  run_ranks(kBackend, 3, [type](const Group& group) {
    const auto hook = std::make_shared<CompressHook>(type);
    HookedWeight weight(group, {5, 7}, hook);
    at::Tensor expected = torch::zeros({5, 7});
    for (int rank = 0; rank < 3; ++rank)
      expected += wave({5, 7}, rank).to(type).to(at::kFloat) / 3;
    const at::Tensor result = weight.reduce(wave({5, 7}, group->rank()));
    // Rounded once more, to the nearest value of the type.
    EXPECT_TRUE(torch::allclose(result, expected,
                                type == at::kHalf ? 0x1p-11 : 0x1p-8, 1e-6));
    EXPECT_TRUE(result.equal(result.to(type).to(at::kFloat)));
    EXPECT_EQ(hook->report().ratio(), 2);
    EXPECT_GT(hook->report().relative_error, 0x1p-14);
    EXPECT_LT(hook->report().relative_error, 0x1p-8);
  });
}

TEST(Fp16CompressHook, AveragesWhatIsRoundedToFloat16) {
  expect_rounded_average(at::kHalf);
}
TEST(Bf16CompressHook, AveragesWhatIsRoundedToBFloat16) {
  expect_rounded_average(at::kBFloat16);
}

TEST(CompressHook, KeepsTheRangeOfItsType) {
  run_ranks(kBackend, 2, [](const Group& group) {
    HookedWeight half(group, {2}, fp16_compress_hook());
    HookedWeight brain(group, {2}, bf16_compress_hook());
    const at::Tensor large = torch::tensor({60000.0F, 1e30F});
    const at::Tensor result = half.reduce(large);
    EXPECT_EQ(result[0].item<float>(), 60000);  // their sum exceeds float16
    EXPECT_TRUE(std::isinf(result[1].item<float>()));
    EXPECT_NEAR(brain.reduce(large)[1].item<float>(), 1e30, 1e28);
  });
}

TEST(CompressHook, GivesItsInnerHookSixteenBits) {
  struct Inner : CommHook {
    HookProgress start(const GradBucket& bucket) override {
      type = bucket.buffer.scalar_type();
      of_gradient = bucket.gradients.at(0).scalar_type();
      return {all_reduce_average(bucket)};
    }
    at::ScalarType type = at::kFloat, of_gradient = at::kFloat;
  };
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto inner = std::make_shared<Inner>();
    HookedWeight weight(group, {4}, bf16_compress_wrapper(inner));
    const at::Tensor result =
        weight.reduce(torch::full({4}, group->rank() + 1.0));
    EXPECT_EQ(inner->type, at::kBFloat16);
    EXPECT_EQ(inner->of_gradient, at::kBFloat16);
    EXPECT_TRUE(result.equal(torch::full({4}, 1.5)));
  });
}

TEST(CompressHook, RefusesOtherTypesAndNoInnerHook) {
  EXPECT_THAT(message_of([] { CompressHook hook(at::kFloat); }),
              HasSubstr("got Float"));
  EXPECT_THAT(message_of([] { fp16_compress_wrapper(nullptr); }),
              HasSubstr("inner hook is null"));
}

}  // namespace
}  // namespace lockstep
