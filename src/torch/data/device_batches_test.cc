#include "lockstep/torch/device_batches.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "src/base/testing/error_text.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr std::int64_t kSamples = 10;
constexpr std::int64_t kBatch = 4;  // the last batch is smaller

// Images with every pixel value. Dividing by its deviations and multiplying by
// their reciprocals gives different bits.
ImageDataset noise(std::int64_t channels) {
  ImageDataset set{.title = "noise",
                   .count = kSamples,
                   .channels = channels,
                   .height = 9,
                   .width = 7,
                   .images = {},
                   .labels = {},
                   .class_names = {"a", "b"},
                   .mean = {0.4914f, 0.4822f, 0.4465f},
                   .standard_deviation = {0.2023f, 0.1994f, 0.2010f}};
  set.mean.resize(channels);
  set.standard_deviation.resize(channels);
  for (std::int64_t i = 0; i < kSamples * set.image_elements(); ++i)
    set.images.push_back(static_cast<std::uint8_t>(i * i + 3 * i));
  for (std::int64_t i = 0; i < kSamples; ++i) set.labels.push_back(i % 2);
  return set;
}

ImageSamples augmented(const ImageDataset& set) {
  return ImageSamples(set,
                      {.crop_padding = 2, .horizontal_flip = true, .seed = 3});
}

// A loader for one pass, in the third epoch, over all samples.
Loader loader_of(const SampleSource& source, ImageElements elements) {
  std::vector<std::int64_t> indices(kSamples);
  std::iota(indices.begin(), indices.end(), std::int64_t{0});
  return Loader(source, indices,
                {.batch_size = kBatch, .epoch = 3, .elements = elements});
}

// Calls `check` with each batch, as `batches` copies it and as the CPU has it.
template <class Check>
void for_each_batch(const SampleSource& source, DeviceBatches& batches,
                    const Check& check) {
  Loader there = loader_of(source, batches.elements());
  Loader here = loader_of(source, ImageElements::kFloat32);
  while (auto expected = here.next(Deadline::never()))
    check(batches.copy(*there.next(Deadline::never())),
          aligned_tensors(*std::move(expected)));
}

// UnscaledImages that are not pixels.
struct UnscaledImages final : SampleSource {
  std::int64_t size() const override { return kSamples; }
  ImageShape shape() const override { return {2, 3, 4}; }
  std::int64_t read(std::int64_t index, std::uint64_t,
                    std::span<float> image) const override {
    std::iota(image.begin(), image.end(), 0.3f * static_cast<float>(index));
    return index;
  }
};

TEST(DeviceBatches, AreAlignedTensorsOnTheCpu) {
  const ImageDataset set = noise(3);
  const ImageSamples samples = augmented(set);
  for (const auto format :
       {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
    DeviceBatches batches(samples, at::kCPU, format);
    EXPECT_EQ(batches.elements(), ImageElements::kFloat32);
    for_each_batch(
        samples, batches,
        [&](const BatchTensors& found, const BatchTensors& expected) {
          EXPECT_TRUE(found.images.equal(expected.images));
          EXPECT_TRUE(found.images.is_contiguous(format));
          EXPECT_TRUE(found.labels.equal(expected.labels));
        });
  }
}

TEST(DeviceBatches, RefuseElementsThatTheyDoNotTake) {
  const ImageDataset set = noise(1);
  const ImageSamples samples(set);
  Loader loader = loader_of(samples, ImageElements::kPixels);
  DeviceBatches batches(samples, at::kCPU);
  EXPECT_THAT(
      error_text([&] { batches.copy(*loader.next(Deadline::never())); }),
      AllOf(HasSubstr("cpu"), HasSubstr("batches.elements()")));
}

using CudaBatches = CudaRanks;

TEST_F(CudaBatches, MakeTheNumbersOfTheCpuOfPixels) {
  run(1, [](const Group& group) {
    for (const std::int64_t channels : {1, 3}) {
      const ImageDataset set = noise(channels);
      const ImageSamples samples = augmented(set);
      for (const auto format :
           {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast}) {
        DeviceBatches batches(samples, gpu_of(*group), format);
        EXPECT_EQ(batches.elements(), ImageElements::kPixels);
        const auto check = [&](const BatchTensors& found,
                               const BatchTensors& expected) {
          EXPECT_EQ(found.images.device(), gpu_of(*group));
          EXPECT_EQ(found.images.scalar_type(), at::kFloat);
          EXPECT_TRUE(found.images.is_contiguous(format));
          EXPECT_TRUE(found.images.cpu().equal(expected.images));
          EXPECT_EQ(found.labels.device(), gpu_of(*group));
          EXPECT_TRUE(found.labels.cpu().equal(expected.labels));
        };
        for_each_batch(samples, batches, check);
      }
    }
  });
}

TEST_F(CudaBatches, CopyTheNumbersOfASourceWithoutPixels) {
  run(1, [](const Group& group) {
    const UnscaledImages numbers;
    DeviceBatches batches(numbers, gpu_of(*group),
                          at::MemoryFormat::ChannelsLast);
    EXPECT_EQ(batches.elements(), ImageElements::kFloat32);
    for_each_batch(
        numbers, batches,
        [&](const BatchTensors& found, const BatchTensors& expected) {
          EXPECT_TRUE(
              found.images.is_contiguous(at::MemoryFormat::ChannelsLast));
          EXPECT_TRUE(found.images.cpu().equal(expected.images));
        });
  });
}

TEST_F(CudaBatches, LeaveLabelsOnTheHostWhereImagesAloneAreAskedFor) {
  run(1, [](const Group& group) {
    const ImageDataset set = noise(1);
    const ImageSamples samples(set);
    DeviceBatches batches(samples, gpu_of(*group));
    Loader loader = loader_of(samples, batches.elements());
    const BatchTensors batch =
        batches.copy_images(*loader.next(Deadline::never()));
    EXPECT_EQ(batch.images.device(), gpu_of(*group));
    EXPECT_TRUE(batch.labels.is_cpu());
    EXPECT_TRUE(batch.labels.equal(at::tensor({0, 1, 0, 1}, at::kLong)));
  });
}

}  // namespace
}  // namespace lockstep
