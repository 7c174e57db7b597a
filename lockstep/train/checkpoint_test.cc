#include "lockstep/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/testing/error_text.h"
#include "lockstep/base/testing/test_directory.h"
#include "lockstep/train/checkpoint_seal.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Parameters, buffers of two types, and a weight that is not contiguous.
class Net : public torch::nn::Module {
 public:
  explicit Net(std::int64_t width = 3)
      : linear(register_module("linear", torch::nn::Linear(width, 4))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        weight(
            register_parameter("weight", at::rand({3, 2}, at::kDouble).t())) {}

  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  at::Tensor weight;
};

std::string refusal_of(const std::filesystem::path& path,
                       torch::nn::Module& net) {
  return error_text([&] { load_checkpoint(path, net); });
}

TEST(Checkpoint, BringsBackParametersAndBuffersWhereTheyAre) {
  const TestDirectory directory;
  Net saved, loaded;
  saved.norm->running_mean.fill_(5);
  saved.norm->num_batches_tracked.fill_(6);
  save_checkpoint(directory / "m", saved, {{"epoch", "3"}});
  const void* place = loaded.linear->weight.data_ptr();
  const auto metadata = load_checkpoint(directory / "m", loaded);
  EXPECT_EQ(metadata, (SafetensorsMetadata{{"epoch", "3"}}));
  for (const auto& item : saved.named_parameters())
    EXPECT_TRUE(at::equal(item.value(), loaded.named_parameters()[item.key()]))
        << item.key();
  for (const auto& item : saved.named_buffers())
    EXPECT_TRUE(at::equal(item.value(), loaded.named_buffers()[item.key()]))
        << item.key();
  EXPECT_EQ(loaded.linear->weight.data_ptr(), place);
  EXPECT_TRUE(loaded.linear->weight.requires_grad());
}

// A module as PyTorch's wrapper holds it.
struct Wrapper : torch::nn::Module {
  explicit Wrapper(std::shared_ptr<Net> net) {
    register_module("module", std::move(net));
  }
};

TEST(Checkpoint, OfAWrappedModelLoadsWithoutTheWrapper) {
  const TestDirectory directory;
  const auto saved = std::make_shared<Net>();
  save_checkpoint(directory / "m", Wrapper(saved));
  Net loaded;
  load_checkpoint(directory / "m", loaded);
  for (const auto& item : saved->named_parameters())
    EXPECT_TRUE(at::equal(item.value(), loaded.named_parameters()[item.key()]))
        << item.key();
  Wrapper wrapper(std::make_shared<Net>());
  EXPECT_NO_THROW(load_checkpoint(directory / "m", wrapper));
}

TEST(Checkpoint, OfAnotherModelIsRefusedWithEveryDifference) {
  const TestDirectory directory;
  Net saved(5), loaded(3);
  saved.register_buffer("only_saved", at::zeros({1}));
  loaded.register_buffer("only_here", at::zeros({2}));
  save_checkpoint(directory / "m", saved);
  const at::Tensor before = loaded.norm->weight.clone();
  saved.norm->weight.detach().fill_(7);
  EXPECT_THAT(
      refusal_of(directory / "m", loaded),
      AllOf(HasSubstr("\"linear.weight\" is float32 [4, 5] in the file, "
                      "float32 [4, 3] in the model"),
            HasSubstr("\"only_here\" is missing from the file (float32 [2])"),
            HasSubstr("\"only_saved\" is in the file only (float32 [1])")));
  EXPECT_TRUE(at::equal(loaded.norm->weight, before));
}

TEST(Checkpoint, OfARunIsRefusedWhereItsChecksumIsWrong) {
  const TestDirectory directory;
  Net net;
  TensorArchive run;
  add_part(run.tensors, std::string(kModelPrefix), tensors_of(Net()));
  seal(run);
  write_archive(directory / "whole", run);
  EXPECT_EQ(refusal_of(directory / "whole", net), "no error");
  const at::Tensor before = net.linear->weight.clone();
  run.tensors["model.linear.weight"] = at::zeros({4, 3});
  write_archive(directory / "damaged", run);
  EXPECT_THAT(refusal_of(directory / "damaged", net),
              AllOf(HasSubstr("damaged\" is damaged"), HasSubstr("checksum")));
  EXPECT_TRUE(at::equal(net.linear->weight, before));
}

TEST(Checkpoint, WillNotSaveATypeThatTheFormatLacks) {
  const TestDirectory directory;
  Net net;
  net.register_buffer("phase", at::zeros({2}, at::kComplexFloat));
  EXPECT_THROW(save_checkpoint(directory / "m", net), InvalidArgument);
  EXPECT_TRUE(directory.entries().empty());
}

}  // namespace
}  // namespace lockstep
