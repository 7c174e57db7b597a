// These tests use a fake CUDA: see src/torch/testing/fake_cuda.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cerrno>
#include <stdexcept>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/testing/error_text.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class OutOfMemoryOnCuda : public CudaRanks {
 protected:
  // A forward of four samples of eight numbers, and a sum over the ranks.
  static void pass(const Group& group, torch::nn::Linear& layer,
                   const at::Tensor& images) {
    tell_out_of_memory({.group = *group,
                        .device = gpu_of(*group),
                        .what = "a pass",
                        .next = "try fewer samples"},
                       [&] {
                         const at::Tensor out = layer(images).detach();
                         all_reduce(*group, out).synchronize();
                       });
  }
};

TEST_F(OutOfMemoryOnCuda, IsToldByTheRankThatHasNoRoomAndHeardByTheOthers) {
  if (!is_fake()) GTEST_SKIP() << "only the fake can limit its memory";
  run(2, [&](const Group& group) {
    torch::nn::Linear layer(8, 8);
    layer->to(gpu_of(*group));
    const at::Tensor images = at::ones({4, 8}, gpu_of(*group));
    pass(group, layer, images);
    if (group->rank() == 1) cuda_->set_room(1, 0);
    const auto next = [&] { pass(group, layer, images); };
    const auto names_the_rank =
        AllOf(HasSubstr("a pass ran out of memory on rank 1 of 2"),
              HasSubstr("on cuda:1"),
              HasSubstr("asked:   128 bytes more, where 0 bytes of 0 bytes"),
              HasSubstr("next:    try fewer samples"),
              HasSubstr("said:    CUDA out of memory"));
    if (group->rank() == 1)
      EXPECT_THAT(error_text<SystemError>(next), names_the_rank);
    else
      EXPECT_THAT(error_text<Error>(next), names_the_rank);
  });
}

TEST_F(OutOfMemoryOnCuda, LeavesOtherErrorsAndTheirGroupAsTheyAre) {
  run(2, [&](const Group& group) {
    const MemoryUser user{.group = *group, .device = gpu_of(*group)};
    EXPECT_EQ(error_text<std::runtime_error>([&] {
                tell_out_of_memory(user,
                                   [] { throw std::runtime_error("other"); });
              }),
              "other");
    const auto misfit = [&] {
      at::mm(at::ones({2, 3}, user.device), at::ones({2, 3}, user.device));
    };
    EXPECT_THAT(
        error_text<c10::Error>([&] { tell_out_of_memory(user, misfit); }),
        Not(HasSubstr("memory on rank")));
    const at::Tensor ones = at::ones({3}, user.device);
    all_reduce(*group, ones).wait();
    EXPECT_TRUE(ones.cpu().equal(at::full({3}, 2.0F)));
  });
}

}  // namespace
}  // namespace lockstep
