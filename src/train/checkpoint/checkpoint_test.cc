#include "lockstep/train/checkpoint.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <array>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/comm/memory/heap.h"
#include "src/train/checkpoint/atomic_file.h"
#include "src/train/checkpoint/checkpoint_seal.h"
#include "src/train/checkpoint/tensor_archive.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Parameters, buffers of two types, and a weight that is not contiguous.
class SavedNet : public torch::nn::Module {
 public:
  explicit SavedNet(std::int64_t width = 3)
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
  SavedNet saved, loaded;
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

struct ManyTypes : torch::nn::Module {
  explicit ManyTypes(double number) {
    for (const at::ScalarType type :
         {at::kComplexFloat, at::kShort, at::kUInt16, at::kUInt32, at::kUInt64,
          at::kFloat8_e4m3fn, at::kFloat8_e5m2})
      register_buffer(c10::toString(type),
                      at::full({2, 3}, number, at::kFloat).to(type));
    const at::Tensor values = at::full({4}, number);
    register_buffer("negated", (-values)._neg_view());
    register_buffer("conjugated", at::complex(values, values).conj());
  }
};

TEST(Checkpoint, HoldsEveryTypeAndWhatIsNegatedOrConjugatedWhenItIsRead) {
  const TestDirectory directory;
  for (const CheckpointFormat format :
       {CheckpointFormat::kSafetensors, CheckpointFormat::kLibTorch}) {
    const ManyTypes saved(3);
    ManyTypes loaded(1);
    save_checkpoint(directory / "m", saved, {}, format);
    load_checkpoint(directory / "m", loaded);
    for (const auto& item : saved.named_buffers()) {
      const at::Tensor& other = loaded.named_buffers()[item.key()];
      EXPECT_TRUE(
          (item.value().to(at::kComplexFloat) == other.to(at::kComplexFloat))
              .all()
              .item<bool>())
          << item.key();
    }
  }
}

// The parent keeps computing in the shared memory.
TEST(Checkpoint, IsRefusedInAForkedProcessOfTensorsThatTheParentChanges) {
  const TestDirectory directory;
  const auto heap = Heap::create({.bytes = std::size_t{1} << 24});
  const auto memory = heap->allocate(64);
  struct Shared : torch::nn::Module {
    explicit Shared(std::byte* memory) {
      register_parameter("w", at::from_blob(memory, {4}, at::kFloat).detach());
    }
  };
  const Shared net(memory.get());
  const pid_t child = ::fork();
  if (child == 0) {
    const auto refused = [&](const auto& save) {
      return error_text(save).find(
                 "tensor \"w\" cannot be saved by a forked "
                 "process") != std::string::npos;
    };
    const bool all = refused([&] { save_checkpoint(directory / "m", net); }) &&
                     refused([&] { module_cpu_copy(net); });
    ::_exit(all ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(directory.entries().empty());
  save_checkpoint(directory / "m", net);
}

// A module inside a wrapper like PyTorch's.
struct Wrapper : torch::nn::Module {
  Wrapper(const std::string& name, std::shared_ptr<torch::nn::Module> net) {
    register_module(name, std::move(net));
  }
};

TEST(Checkpoint, OfAWrappedModelLoadsWithoutTheWrapper) {
  const TestDirectory directory;
  const auto saved = std::make_shared<SavedNet>();
  // DistributedDataParallel, torch.compile, and each of the two in the other.
  using Names = std::vector<std::string>;
  for (const Names& names :
       {Names{"module"}, Names{"_orig_mod"}, Names{"module", "_orig_mod"},
        Names{"_orig_mod", "module"}}) {
    const auto wrapped = [&](std::shared_ptr<torch::nn::Module> net) {
      for (const std::string& name : names)
        net = std::make_shared<Wrapper>(name, net);
      return net;
    };
    save_checkpoint(directory / "m", *wrapped(saved));
    SavedNet loaded;
    load_checkpoint(directory / "m", loaded);
    for (const auto& item : saved->named_parameters())
      EXPECT_TRUE(
          at::equal(item.value(), loaded.named_parameters()[item.key()]))
          << item.key();
    const auto wrapper = wrapped(std::make_shared<SavedNet>());
    EXPECT_NO_THROW(load_checkpoint(directory / "m", *wrapper));
  }
}

TEST(Checkpoint, OfAnotherModelIsRefusedWithEveryDifference) {
  const TestDirectory directory;
  SavedNet saved(5), loaded(3);
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
  SavedNet net;
  TensorArchive run;
  add_part(run.tensors, std::string(kModelPrefix), tensors_of(SavedNet()));
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

TEST(Checkpoint, OfAModelIsRefusedWhereABitFlipped) {
  const TestDirectory directory;
  SavedNet net;
  save_checkpoint(directory / "m", net);
  const std::vector<std::byte> whole = *read_bytes(directory / "m");
  // The last byte is a tensor's.
  for (const std::size_t from_end : {1, 40, 90}) {
    std::vector<std::byte> flipped = whole;
    flipped[whole.size() - from_end] ^= std::byte{0x40};
    replace_file(directory / "m",
                 std::array{std::span<const std::byte>(flipped)});
    EXPECT_THAT(refusal_of(directory / "m", net),
                AllOf(HasSubstr("is damaged: its checksum is"),
                      HasSubstr("use another copy")))
        << from_end;
  }
}

TEST(Checkpoint, OfAModelWithoutAChecksumIsRead) {
  const TestDirectory directory;
  SavedNet net;
  write_archive(directory / "m", {tensors_of(net), {{"format", "pt"}}});
  EXPECT_EQ(refusal_of(directory / "m", net), "no error");
}

TEST(Checkpoint, WillNotSaveATypeThatTheFormatLacks) {
  const TestDirectory directory;
  SavedNet net;
  net.register_buffer("phase", at::zeros({2}, at::kComplexDouble));
  EXPECT_THROW(save_checkpoint(directory / "m", net), InvalidArgument);
  EXPECT_TRUE(directory.entries().empty());
}

}  // namespace
}  // namespace lockstep
