// Tests of models that ranks cannot train together: each rank gets an error
// when it wraps one, and the group keeps working.
#include "src/torch/ddp/replicate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Two parameters; `name` may differ between ranks.
struct TwoParameters : torch::nn::Module {
  TwoParameters(const std::string& name, const at::Tensor& tensor) {
    register_parameter("first", wave({2}, 0));
    register_parameter(name, tensor);
  }
};

// Checks the error on three ranks when rank 2 has another tensor in place of
// the second parameter, "second" with 3 numbers.
void expect_mismatch(const std::string& name, const at::Tensor& tensor,
                     const std::string& line) {
  run_ranks(kBackend, 3, [&](const Group& group) {
    const auto wrap = [&] {
      const auto usual =
          std::make_shared<TwoParameters>("second", wave({3}, 0));
      const auto other = std::make_shared<TwoParameters>(name, tensor);
      DistributedDataParallel(group->rank() == 2 ? other : usual,
                              {.group = group});
    };
    EXPECT_THROW(wrap(), Mismatch);
    EXPECT_THAT(message_of(wrap),
                AllOf(HasSubstr("rank 0:  parameter second Float [3]\n"),
                      HasSubstr("rank 2:  parameter " + line + "\n"),
                      HasSubstr("differ:  rank 0 and rank 2\n"),
                      HasSubstr("next:    build the same module everywhere")));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

TEST(DifferentModels, AreToldByTheFirstNameThatDiffers) {
  expect_mismatch("another", wave({3}, 0), "another Float [3]");
}

TEST(DifferentModels, AreToldByTheFirstShapeThatDiffers) {
  expect_mismatch("second", wave({1, 3}, 0), "second Float [1, 3]");
}

TEST(DifferentModels, AreToldByTheFirstTypeThatDiffers) {
  expect_mismatch("second", wave({3}, 0).to(at::kDouble), "second Double [3]");
}

TEST(DifferentModels, AreToldByTheFirstDeviceThatDiffers) {
  expect_mismatch("second", wave({3}, 0).to(at::kMeta),
                  "second Float [3] on meta");
}

TEST(AModelOnTwoDevices, IsRefusedNamingAParameterOnEach) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [](const Group& group) {
      const auto wrap = [&] {
        DistributedDataParallel(
            TwoParameters("second", wave({3}, 0).to(at::kMeta)),
            {.group = group});
      };
      EXPECT_THROW(wrap(), InvalidArgument);
      EXPECT_THAT(message_of(wrap),
                  AllOf(HasSubstr("first is on cpu, second is on meta"),
                        HasSubstr("next:    move the whole module to one")));
      EXPECT_NO_THROW(group->barrier().wait());
    });
}

TEST(AModelWithoutParameters, IsRefusedSayingWhatToDo) {
  for (const int ranks : {1, 2})
    run_ranks(kBackend, ranks, [](const Group& group) {
      struct Nothing : torch::nn::Module {};
      const auto wrap = [&] {
        DistributedDataParallel(Nothing(), {.group = group});
      };
      EXPECT_THROW(wrap(), InvalidArgument);
      EXPECT_THAT(message_of(wrap),
                  AllOf(HasSubstr("there is nothing to reduce"),
                        HasSubstr("next:    use the module without")));
      EXPECT_NO_THROW(group->barrier().wait());
    });
}

}  // namespace
}  // namespace lockstep
