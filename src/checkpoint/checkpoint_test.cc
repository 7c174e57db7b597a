#include "lockstep/checkpoint/checkpoint.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/atomic_file.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/memory/heap.h"

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

struct OneBuffer : torch::nn::Module {
  OneBuffer(double number, at::ScalarType type) {
    register_buffer("x", at::full({1}, number, at::kDouble).to(type));
  }
};

TEST(Checkpoint, RefusesNumbersThatTheTypeOfTheModelCannotHold) {
  const TestDirectory directory;
  const auto loads = [&](const OneBuffer& saved, at::ScalarType type) {
    save_checkpoint(directory / "m", saved);
    OneBuffer loaded(1, type);
    try {
      load_checkpoint(directory / "m", loaded);
    } catch (const InvalidArgument&) {
      EXPECT_EQ(loaded.buffers()[0].item<float>(), 1);
      return false;
    }
    return true;
  };
  EXPECT_TRUE(loads({1e-30, at::kDouble}, at::kHalf)) << "rounds to 0";
  EXPECT_TRUE(loads({-2.9, at::kFloat}, at::kFloat8_e4m3fn));
  EXPECT_FALSE(loads({1e39, at::kDouble}, at::kFloat));
  EXPECT_FALSE(loads({1e39, at::kDouble}, at::kComplexFloat));
  EXPECT_FALSE(loads({65504, at::kFloat}, at::kFloat8_e4m3fn));
  EXPECT_FALSE(loads({-1, at::kFloat}, at::kFloat8_e8m0fnu));
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

// As load_state_dict(strict=True) of PyTorch.
TEST(Checkpoint, ConvertsTheFilesTypesToThoseOfTheModel) {
  const TestDirectory directory;
  const SavedNet saved;
  for (const at::ScalarType type :
       {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kInt}) {
    TensorArchive file{tensors_of(saved), {}};
    for (auto& [name, tensor] : file.tensors)
      tensor = tensor.mul(9).round().to(type);
    write_archive(directory / "m", file);
    SavedNet loaded;
    load_checkpoint(directory / "m", loaded);
    for (const auto& [name, tensor] : tensors_of(loaded))
      EXPECT_TRUE(tensor.equal(file.tensors.at(name).to(tensor.scalar_type())))
          << name << " from " << type;
    EXPECT_EQ(loaded.weight.scalar_type(), at::kDouble);
  }
}

TEST(Checkpoint, RefusesAConversionThatLosesWhatNumbersSay) {
  const TestDirectory directory;
  SavedNet net;
  const at::Tensor before = net.linear->bias.clone();
  for (const auto& [name, tensor] :
       std::vector<std::pair<std::string, at::Tensor>>{
           {"linear.bias", at::full({4}, 1e300, at::kDouble)},
           {"linear.bias", at::ones({4}, at::kComplexFloat)},
           {"norm.num_batches_tracked", at::full({}, 0.5)}}) {
    TensorArchive file{tensors_of(net), {}};
    file.tensors[name] = tensor;
    write_archive(directory / "m", file);
    EXPECT_THAT(refusal_of(directory / "m", net),
                HasSubstr("\"" + name + "\" is "));
  }
  EXPECT_TRUE(net.linear->bias.equal(before));
}

TEST(Checkpoint, TakesACountThatIsMissingOrHasOneDimension) {
  const TestDirectory directory;
  SavedNet saved, loaded;
  saved.norm->running_mean.fill_(5);
  loaded.norm->num_batches_tracked.fill_(6);
  TensorArchive file{tensors_of(saved), {}};
  const std::string count = "norm.num_batches_tracked";
  file.tensors.erase(count);
  write_archive(directory / "m", file);
  load_checkpoint(directory / "m", loaded);
  EXPECT_EQ(loaded.norm->running_mean[0].item<int>(), 5);
  EXPECT_EQ(loaded.norm->num_batches_tracked.item<int>(), 6);
  file.tensors[count] = at::full({1}, 7, at::kLong);
  write_archive(directory / "m", file);
  load_checkpoint(directory / "m", loaded);
  EXPECT_EQ(loaded.norm->num_batches_tracked.item<int>(), 7);
  file.tensors.erase("norm.running_mean");
  file.tensors.erase(count);
  write_archive(directory / "m", file);
  EXPECT_THAT(refusal_of(directory / "m", loaded),
              HasSubstr("\"" + count + "\" is missing"));
}

// Two layers with one weight, as Python's safetensors stores it: once.
struct TiedNet : torch::nn::Module {
  TiedNet()
      : first(register_module("first", torch::nn::Linear(3, 3))),
        last(register_module("last", torch::nn::Linear(3, 3))) {
    last->weight = last->register_parameter("tied", first->weight);
  }
  torch::nn::Linear first, last;
};

TEST(Checkpoint, TakesATiedWeightUnderAnyOfItsNames) {
  const TestDirectory directory;
  const TiedNet saved;
  for (const char* missing : {"first.weight", "last.tied"}) {
    TensorArchive file{tensors_of(saved), {}};
    file.tensors.erase(missing);
    write_archive(directory / "m", file);
    TiedNet loaded;
    load_checkpoint(directory / "m", loaded);
    EXPECT_TRUE(loaded.first->weight.equal(saved.first->weight)) << missing;
  }
}

TEST(Checkpoint, OfExpandedTensorsLoadsWhereTheFileRepeatsItsNumbersToo) {
  const TestDirectory directory;
  SavedNet saved, loaded;
  saved.register_buffer("grid", at::arange(3).expand({2, 3}));
  const at::Tensor grid =
      loaded.register_buffer("grid", at::zeros({3}, at::kLong).expand({2, 3}));
  save_checkpoint(directory / "m", saved);
  load_checkpoint(directory / "m", loaded);
  EXPECT_TRUE(grid.equal(at::arange(3).expand({2, 3})));
  TensorArchive other{tensors_of(saved), {}};
  other.tensors["grid"] = at::arange(6).view({2, 3});
  write_archive(directory / "m", other);
  EXPECT_THAT(refusal_of(directory / "m", loaded),
              HasSubstr("\"grid\" has elements that share memory"));
}

TEST(Checkpoint, FillsTensorsThatInferenceModeMade) {
  const TestDirectory directory;
  const auto net = [](int value) {
    const c10::InferenceMode mode;
    auto made = std::make_unique<SavedNet>();
    made->register_buffer("scale", at::full({2}, value));
    return made;
  };
  save_checkpoint(directory / "m", *net(5));
  const auto loaded = net(1);
  load_checkpoint(directory / "m", *loaded);
  EXPECT_EQ(loaded->named_buffers()["scale"][1].item<int>(), 5);
}

TEST(Checkpoint, KeepsTheTextsThatItGivesWhenTheyAreSavedAgain) {
  const TestDirectory directory;
  SavedNet net;
  TensorArchive run{.metadata = {{"lockstep.job.model", "x"}}};
  add_part(run.tensors, std::string(kModelPrefix), tensors_of(net));
  seal(run);
  write_archive(directory / "run", run);
  save_checkpoint(directory / "m", net,
                  load_checkpoint(directory / "run", net));
  EXPECT_EQ(load_checkpoint(directory / "m", net),
            (SafetensorsMetadata{{"lockstep.job.model", "x"}}));
  for (const CheckpointFormat format :
       {CheckpointFormat::kSafetensors, CheckpointFormat::kLibTorch})
    for (const char* key : {"lockstep.checkpoint", "lockstep.checksum"})
      EXPECT_THAT(error_text([&] {
                    save_checkpoint(directory / "m", net, {{key, "1"}}, format);
                  }),
                  HasSubstr(std::string("has the text \"") + key));
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

TEST(Checkpoint, NamesTheTensorThatNoFileCanHold) {
  const TestDirectory directory;
  const at::Tensor meta = at::empty({2}, at::TensorOptions(at::kMeta));
  for (const at::Tensor& tensor :
       {at::zeros({2}, at::kComplexDouble), at::eye(3).to_sparse(),
        at::eye(3).to_sparse_csr(), meta})
    for (const CheckpointFormat format :
         {CheckpointFormat::kSafetensors, CheckpointFormat::kLibTorch}) {
      SavedNet net;
      net.register_buffer("phase", tensor);
      EXPECT_THAT(error_text([&] {
                    save_checkpoint(directory / "m", net, {}, format);
                  }),
                  HasSubstr("tensor \"phase\" cannot be saved"));
    }
  SavedNet twice;
  twice.register_buffer("weight", at::zeros({2}));
  EXPECT_THAT(error_text([&] { save_checkpoint(directory / "m", twice); }),
              HasSubstr("a parameter and a buffer named \"weight\""));
  EXPECT_TRUE(directory.entries().empty());
}

}  // namespace
}  // namespace lockstep
