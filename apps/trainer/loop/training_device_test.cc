#include "apps/trainer/loop/training_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "src/base/testing/error_text.h"
#include "src/torch/testing/fake_cuda.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

std::string refusal(std::string_view name) {
  return error_text([&] { training_device(name); });
}

TEST(TrainingDevice, IsFoundByName) {
  EXPECT_EQ(training_device("cpu"), c10::Device(c10::kCPU));
  EXPECT_EQ(training_devices("cpu", 2),
            (std::vector<c10::Device>{c10::kCPU, c10::kCPU}));
  if (!FakeCuda::possible()) GTEST_SKIP() << "LibTorch has a CUDA of its own";
  FakeGpu gpu;
  const FakeCuda cuda(gpu);
  EXPECT_EQ(training_device("cuda"), c10::Device(c10::kCUDA, 0));
  EXPECT_EQ(training_device("cuda:1"), c10::Device(c10::kCUDA, 1));
  EXPECT_EQ(training_devices("cuda:1", 2),
            (std::vector<c10::Device>{{c10::kCUDA, 1}, {c10::kCUDA, 2}}));
  EXPECT_THAT(refusal("cuda:100"),
              AllOf(HasSubstr("numbered from 0"), HasSubstr("next:")));
}

TEST(PeakMemory, IsThatOfEachDevice) {
  EXPECT_THAT(peak_memory_text({c10::kCPU, c10::kCPU}),
              MatchesRegex("memory at most: cpu [0-9]+\\.[0-9][0-9] GiB"));
  if (!FakeCuda::possible()) GTEST_SKIP() << "LibTorch has a CUDA of its own";
  FakeGpu gpu;
  const FakeCuda cuda(gpu);
  EXPECT_EQ(peak_memory_text({{c10::kCUDA, 0}, {c10::kCUDA, 1}}),
            "memory at most: cuda:0 0.00 GiB, cuda:1 0.00 GiB");
}

TEST(TrainingDevice, IsRefusedWhereTheNameIsNone) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:1x", "Cuda"})
    EXPECT_THAT(refusal(name), AllOf(HasSubstr(name), HasSubstr("cuda:N")));
}

}  // namespace
}  // namespace lockstep
