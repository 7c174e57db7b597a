// Tests of evaluation on fake GPUs: see src/torch/testing/fake_cuda.h.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/evaluate/evaluation.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/model_outputs.h"
#include "src/evaluate/testing/stripe_net.h"
#include "src/evaluate/testing/striped_images.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kCudaSamples =
    103;  // ten blocks of ten, and a short one

class EvaluationOnCuda : public CudaRanks {
 protected:
  static std::shared_ptr<StripeNet> model() {
    return std::make_shared<StripeNet>();
  }
  static EvaluationOptions options(const Group& group, at::Device device) {
    return {.classes = 10,
            .batch_size = 10,
            .device = device,
            .probabilities = true,
            .group = group};
  }
  // The result of `ask` for a model on `device`.
  template <class Ask>
  static auto found_on(at::Device device, const Group& group, const Ask& ask) {
    const auto net = model();
    net->to(device);
    net->eval();
    const Forward forward = [&](const at::Tensor& images) {
      EXPECT_EQ(images.device(), device);
      return net->forward(images);
    };
    return ask(forward, options(group, device));
  }
  // Calls `check` on each of `ranks` with the result on its GPU and one rank's
  // result on the CPU.
  template <class Ask, class Check>
  void compare(int ranks, const Ask& ask, const Check& check) {
    std::optional<decltype(ask(Forward(), EvaluationOptions{}))> expected;
    run_ranks("shm", 1, [&](const Group& group) {
      expected = found_on(at::kCPU, group, ask);
    });
    run(ranks, [&](const Group& group) {
      check(*group, found_on(gpu_of(*group), group, ask), *expected);
    });
  }

  ImageDataset dataset_ = striped_images(kCudaSamples, 2);
  ImageSamples samples_{dataset_};
};

TEST_F(EvaluationOnCuda, FindsWhatTheCpuFinds) {
  const auto ask = [&](const Forward& forward,
                       const EvaluationOptions& options) {
    return evaluate(forward, samples_, options);
  };
  const auto check = [](ProcessGroup&, const Evaluation& found,
                        const Evaluation& expected) {
    EXPECT_EQ(found.confusion, expected.confusion);
    EXPECT_NEAR(found.loss, expected.loss, 1e-3);
  };
  compare(1, ask, check);
  compare(2, ask, check);
}

TEST_F(EvaluationOnCuda, PredictsWhatTheCpuPredicts) {
  const auto ask = [&](const Forward& forward,
                       const EvaluationOptions& options) {
    return predict(forward, samples_, options);
  };
  const auto check = [](ProcessGroup& group, const Predictions& found,
                        const Predictions& expected) {
    ASSERT_EQ(found.labels.defined(), group.rank() == 0);
    if (group.rank() != 0) return;
    EXPECT_TRUE(found.labels.equal(expected.labels));
    EXPECT_TRUE(found.predicted.equal(expected.predicted));
    EXPECT_TRUE(found.probability.allclose(expected.probability, 1e-4));
    EXPECT_TRUE(found.probabilities.allclose(expected.probabilities, 1e-4));
  };
  compare(1, ask, check);
  compare(2, ask, check);
}

// Three images of one channel each become one of three.
ImageDataset images_in_color() {
  ImageDataset set = striped_images(3 * kCudaSamples, 2);
  set.count = kCudaSamples;
  set.channels = 3;
  set.labels.resize(kCudaSamples);
  set.mean.resize(3, 0.3F);
  set.standard_deviation.resize(3, 0.3F);
  return set;
}

TEST_F(EvaluationOnCuda, StoresImagesAndWeightsChannelsLast) {
  const ImageDataset colored = images_in_color();
  const ImageSamples samples(colored);
  const auto ask = [&](at::MemoryFormat format, at::Device device,
                       const Group& group) {
    const auto net = std::make_shared<StripeNet>(3);
    for (at::Tensor& weight : net->parameters())
      if (weight.dim() == 4) weight.set_data(weight.contiguous(format));
    net->to(device);
    net->eval();
    EvaluationOptions asked = options(group, device);
    asked.memory_format = format;
    return predict(Forward([&](const at::Tensor& images) {
                     EXPECT_TRUE(images.is_contiguous(format));
                     return net->forward(images);
                   }),
                   samples, asked);
  };
  run(1, [&](const Group& group) {
    const auto usual = ask(at::MemoryFormat::Contiguous, at::kCPU, group);
    for (const at::Device device : {at::Device(at::kCPU), gpu_of(*group)})
      EXPECT_TRUE(ask(at::MemoryFormat::ChannelsLast, device, group)
                      .probabilities.allclose(usual.probabilities, 1e-4, 1e-5));
  });
}

TEST_F(EvaluationOnCuda, GivesTheDeviceABatchMoreBeforeItReadsAnOutput) {
  run(1, [&](const Group& group) {
    DeviceBatches batches(samples_, gpu_of(*group));
    Loader loader(samples_, {0, 1, 2, 3, 4},
                  {.batch_size = 2, .elements = batches.elements()});
    std::vector<std::string> order;
    const Forward forward = [&](const at::Tensor& images) {
      order.push_back("pass");
      EXPECT_EQ(images.device(), gpu_of(*group));
      return images.flatten(1).narrow(1, 0, 10);
    };
    std::int64_t first = 0;
    for_each_output(
        loader, batches, forward, group->timeout(),
        [&](const at::Tensor& logits, const at::Tensor& labels) {
          order.push_back("read");
          ASSERT_TRUE(logits.is_cpu());
          ASSERT_TRUE(labels.is_cpu());
          for (std::int64_t i = 0; i < labels.size(0); ++i, ++first) {
            std::vector<float> image(28 * 28);
            EXPECT_EQ(samples_.read(first, 0, image),
                      labels[i].item<std::int64_t>());
            EXPECT_TRUE(
                logits[i].equal(at::from_blob(image.data(), {10}, at::kFloat)));
          }
        });
    EXPECT_EQ(first, 5);
    EXPECT_THAT(order,
                ElementsAre("pass", "pass", "read", "pass", "read", "read"));
  });
}

TEST_F(EvaluationOnCuda, SaysWhatToTryWhereMemoryRunsOut) {
  if (!is_fake()) GTEST_SKIP() << "only the fake can limit its memory";
  run(1, [&](const Group& group) {
    const Forward forward = [&](const at::Tensor& images) {
      cuda_->set_room(0, 0);
      return images.flatten(1).narrow(1, 0, 10).clone();
    };
    EXPECT_THAT(error_text<SystemError>([&] {
                  evaluate(forward, samples_, options(group, gpu_of(*group)));
                }),
                AllOf(HasSubstr("ran out of memory"),
                      HasSubstr("EvaluationOptions::batch_size")));
  });
}

TEST_F(EvaluationOnCuda, RefusesWhatTheCpuRefuses) {
  run(1, [&](const Group& group) {
    const Forward five = [](const at::Tensor& images) {
      return at::zeros({images.size(0), 5}, images.options());
    };
    EXPECT_THAT(error_text([&] {
                  evaluate(five, samples_, options(group, gpu_of(*group)));
                }),
                HasSubstr("gave 10 x 5 numbers for 10 images of 10"));
  });
}

}  // namespace
}  // namespace lockstep
