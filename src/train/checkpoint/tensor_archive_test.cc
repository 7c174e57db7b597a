#include "src/train/checkpoint/tensor_archive.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <limits>
#include <string>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Reads an archive of one tensor that another program wrote.
TensorArchive read_back(const at::Tensor& tensor) {
  torch::serialize::OutputArchive output;
  output.write("a", tensor);
  const TestDirectory directory;
  output.save_to(directory / "file");
  return parse_archive(read_bytes(directory / "file"), "the file");
}

TEST(TensorArchive, NamedSafetensorsIsNeverReadByLibTorch) {
  const TestDirectory directory;
  const TensorArchive archive{.tensors = {{"a", at::ones({2})}}};
  for (const char* name : {"m.pt", "m.safetensors"})
    write_archive(directory / name, archive, CheckpointFormat::kLibTorch);
  const auto read = [&](const char* name) {
    const auto path = directory / name;
    return parse_archive(read_bytes(path), path.string());
  };
  EXPECT_TRUE(at::equal(read("m.pt").tensors.at("a"), at::ones({2})));
  EXPECT_THAT(
      error_text([&] { read("m.safetensors"); }),
      AllOf(HasSubstr("m.safetensors\" is not a safetensors file, but a "
                      "LibTorch archive"),
            HasSubstr("rename it to .pt")));
}

TEST(TensorArchive, HasDenseRowsWhateverWasWritten) {
  const at::Tensor turned = at::arange(6).view({2, 3}).t();
  const at::Tensor read = read_back(turned).tensors.at("a");
  EXPECT_TRUE(read.is_contiguous());
  EXPECT_TRUE(at::equal(read, turned));
  EXPECT_EQ(read_back(at::empty({3, 0})).tensors.at("a").numel(), 0);
  EXPECT_THAT(error_text([&] { read_back(at::eye(3).to_sparse()); }),
              HasSubstr("\"a\" is not a dense tensor"));
}

TEST(TensorArchive, ThatReachesBeyondItsMemoryIsRefused) {
  struct Extent {
    std::int64_t size, stride;
  };
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  for (const auto& [size, stride] :
       {Extent{5, 1}, Extent{4, 2}, Extent{3, kMost}, Extent{1 << 20, 1}}) {
    const at::Tensor tensor = at::ones({4});
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
        at::IntArrayRef(size), at::IntArrayRef(stride));
    EXPECT_THAT(error_text([&] { read_back(tensor); }),
                AllOf(HasSubstr("\"the file\""), HasSubstr("next:")))
        << size << " by " << stride;
  }
}

}  // namespace
}  // namespace lockstep
