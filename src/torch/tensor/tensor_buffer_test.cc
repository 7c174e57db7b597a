#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TensorBuffer, IsTheTensorsOwnMemory) {
  at::Tensor tensor = wave({3, 4}, 0);
  const Buffer buffer = view(tensor);
  EXPECT_EQ(buffer.data, tensor.data_ptr());
  EXPECT_EQ(buffer.count, 12);
  EXPECT_EQ(buffer.type, DataType::kFloat32);
  const auto buffers = views({tensor, tensor[1]});
  EXPECT_EQ(buffers[1].data, tensor.data_ptr<float>() + 4);
  EXPECT_EQ(buffers[1].count, 4);
}

TEST(TensorBuffer, KnowsEveryDataTypeBothWays) {
  for (const DataType type : kAllDataTypes) {
    const at::Tensor tensor = torch::zeros({2}, scalar_type_of(type));
    EXPECT_EQ(view(tensor).type, type);
    EXPECT_EQ(view(tensor).bytes(), tensor.nbytes());
  }
}

TEST(TensorBuffer, SaysWhyATensorCannotTravel) {
  const auto refusal = [](const at::Tensor& tensor) {
    EXPECT_THROW(view(tensor), InvalidArgument);
    return message_of([&] { view(tensor); });
  };
  EXPECT_THAT(refusal(wave({3, 4}, 0).t()), HasSubstr("not contiguous"));
  EXPECT_THAT(refusal(wave({3, 4}, 0).to_sparse()), HasSubstr("is sparse"));
  EXPECT_THAT(refusal(torch::zeros({2}, at::kComplexFloat)),
              AllOf(HasSubstr("ComplexFloat"), HasSubstr("view_as_real")));
  EXPECT_THAT(refusal(torch::empty({2}, at::kMeta)),
              HasSubstr("is on the meta device"));
  EXPECT_THAT(refusal({}), HasSubstr("undefined"));
}

// A sample is its index, times 10 in the image.
class NumberSamples : public SampleSource {
 public:
  std::int64_t size() const override { return 3; }
  ImageShape shape() const override { return {1, 2, 1}; }
  std::int64_t read(std::int64_t index, std::uint64_t,
                    std::span<float> image) const override {
    image[0] = image[1] = static_cast<float>(10 * index);
    return index;
  }
};

TEST(BatchTensors, KeepTheBatchsMemory) {
  const NumberSamples numbers;
  BatchTensors tensors;
  {
    Loader loader(numbers, {2, 0}, {.batch_size = 2});
    tensors = as_tensors(*loader.next(Deadline::never()));
  }
  EXPECT_EQ(tensors.images.sizes(), (std::vector<std::int64_t>{2, 1, 2, 1}));
  EXPECT_TRUE(tensors.labels.equal(torch::tensor({2, 0}, at::kLong)));
  EXPECT_TRUE(tensors.images.flatten().equal(
      torch::tensor({20.0, 20.0, 0.0, 0.0}, at::kFloat)));
}

}  // namespace
}  // namespace lockstep
