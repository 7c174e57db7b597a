#include "src/checkpoint/tensor_archive.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/serialize/archive.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

// LibTorch writes names into source code.
std::vector<std::vector<std::string>> sets_of_names() {
  std::vector<std::vector<std::string>> sets{
      {"a", "a.b"}, {"a", "in"}, {std::string(300, 'n')}};
  for (const char* name : {"w",        "in",      "for",       "global",
                           "pass",     "None",    "class",     "is",
                           "lambda",   "a.in.b",  "in.a",      "a\"b",
                           "a\nb",     "a\\b",    "a'b",       "a-b",
                           "a b",      "a/b",     "1st",       "0",
                           "\xc3\xbc", "",        ".",         "a.",
                           ".a",       "a..b",    "training",  "__metadata__",
                           "self",     "forward", "Tensor",    "def",
                           "return",   "True",    "__class__", "a#b",
                           "a[0]",     "\t",      "a\x01",     "yield",
                           "NaN"})
    sets.push_back({name});
  return sets;
}

TEST(TensorArchive, OfEitherFormatIsReadBackOrRefusedWhenItIsWritten) {
  const TestDirectory directory;
  int refused = 0;
  for (const auto& names : sets_of_names())
    for (const CheckpointFormat format :
         {CheckpointFormat::kSafetensors, CheckpointFormat::kLibTorch}) {
      TensorArchive archive{.metadata = {{"text", "a \"text\"\n\\"}}};
      for (const std::string& name : names)
        archive.tensors.emplace(name, at::full({2}, 3));
      const auto path = directory / "m";
      const std::string error =
          error_text([&] { write_archive(path, archive, format); });
      if (error != "no error") {
        EXPECT_THAT(error, AllOf(HasSubstr("next:    "),
                                 Not(HasSubstr("another error"))));
        EXPECT_TRUE(directory.entries().empty()) << names[0];
        ++refused;
        continue;
      }
      const TensorArchive read = parse_archive(read_bytes(path), "m");
      EXPECT_EQ(read.metadata, archive.metadata) << names[0];
      ASSERT_EQ(read.tensors.size(), archive.tensors.size()) << names[0];
      for (const std::string& name : names)
        EXPECT_TRUE(read.tensors.at(name).equal(archive.tensors.at(name)))
            << name;
      std::filesystem::remove(path);
    }
  EXPECT_GT(refused, 0);
}

TEST(TensorArchive, NamesWhatLibTorchsFormatCannotHold) {
  const TestDirectory directory;
  const TensorArchive archive{
      .tensors = {{"a", at::ones({2})}, {"layer.in", at::ones({2})}}};
  EXPECT_THAT(error_text([&] {
                write_archive(directory / "m", archive,
                              CheckpointFormat::kLibTorch);
              }),
              AllOf(HasSubstr("cannot hold the name \"layer.in\""),
                    HasSubstr("next:    save as safetensors")));
  EXPECT_TRUE(directory.entries().empty());
}

std::string message_of(const std::string& bytes, const std::string& file) {
  const auto span = std::as_bytes(std::span(bytes));
  return error_text([&] {
    parse_archive(std::make_shared<const std::vector<std::byte>>(span.begin(),
                                                                 span.end()),
                  file);
  });
}

// The records of a file of torch.save(), without those of its tensors.
std::string python_file() {
  std::string bytes;
  caffe2::serialize::PyTorchStreamWriter writer(
      [&](const void* from, std::size_t count) {
        bytes.append(static_cast<const char*>(from), count);
        return count;
      });
  writer.writeRecord("data.pkl", "\x80\x02}q\x00.", 6);
  writer.writeEndOfFile();
  return bytes;
}

TEST(TensorArchive, ThatPythonSavedIsNotCalledDamaged) {
  using namespace std::string_literals;
  const std::string file = python_file();
  // Before PyTorch 1.6, of torch.save(model.state_dict(), …).
  const std::string old =
      "\x80\x02\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."s;
  for (const std::string& bytes : {file, old})
    EXPECT_THAT(message_of(bytes, "m.pt"),
                AllOf(HasSubstr("m.pt"), HasSubstr("Python's torch.save"),
                      HasSubstr("next:    "), HasSubstr("save_file("),
                      Not(HasSubstr("damaged"))));
  EXPECT_THAT(message_of(file.substr(0, file.size() / 2), "m.pt"),
              HasSubstr("damaged or was cut short"));
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
