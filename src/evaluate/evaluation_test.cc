#include "lockstep/evaluate/evaluation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>

#include "lockstep/base/error.h"
#include "lockstep/data/image_dataset.h"
#include "src/base/testing/error_text.h"
#include "src/base/testing/test_directory.h"
#include "src/checkpoint/safetensors.h"
#include "src/comm/testing/run_ranks.h"
#include "src/evaluate/metrics.h"
#include "src/evaluate/prediction_file.h"
#include "src/evaluate/testing/stripe_net.h"
#include "src/evaluate/testing/striped_images.h"
#include "src/evaluate/unlabelled_images.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::int64_t kSamples = 103;  // ten blocks of ten, and a short one

class EvaluationOfAModel : public ::testing::Test {
 protected:
  void SetUp() override { at::set_num_threads(1); }

  static std::shared_ptr<StripeNet> model() {
    return std::make_shared<StripeNet>();
  }
  static EvaluationOptions options(std::shared_ptr<ProcessGroup> group) {
    return {.classes = 10, .batch_size = 10, .group = std::move(group)};
  }
  Evaluation evaluation_on(int ranks) const {
    Evaluation result{.confusion = ConfusionMatrix(1)};
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto mine = evaluate(*model(), samples_, options(group));
      if (group->rank() == group->size() - 1) result = mine;
    });
    return result;
  }
  Predictions predictions_on(int ranks, EvaluationOptions wanted) const {
    Predictions result;
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      EvaluationOptions mine = wanted;
      mine.group = group;
      Predictions found = predict(*model(), samples_, mine);
      EXPECT_EQ(found.labels.defined(), group->rank() == 0);
      if (group->rank() == 0) result = std::move(found);
    });
    return result;
  }
  // The error on one rank, with `forward` as the model.
  std::string refusal_of(const Forward& forward, const EvaluationOptions& given,
                         const ImageDataset& dataset) const {
    return error_text([&] {
      run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
        EvaluationOptions mine = given;
        mine.group = group;
        evaluate(forward, ImageSamples(dataset), mine);
      });
    });
  }

  ImageDataset dataset_ = striped_images(kSamples, 2);
  ImageSamples samples_{dataset_};
};

TEST_F(EvaluationOfAModel, HasTheSameBitsOnAnyNumberOfRanks) {
  const Evaluation one = evaluation_on(1);
  EXPECT_EQ(one.confusion.samples(), kSamples);
  EXPECT_GT(one.loss, 0);
  for (const int ranks : {2, 3, 13}) {  // 13: two ranks have no block
    const Evaluation several = evaluation_on(ranks);
    EXPECT_EQ(several.confusion, one.confusion) << ranks;
    EXPECT_EQ(several.loss, one.loss) << ranks;
  }
}

TEST_F(EvaluationOfAModel, IsWhatOneForwardPassOverAllGives) {
  const at::NoGradGuard no_grad;
  at::Tensor images = at::empty({kSamples, 1, 28, 28});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < kSamples; ++i)
    labels.push_back(
        samples_.read(i, 0, {images[i].mutable_data_ptr<float>(), 28 * 28}));
  const auto net = model();
  net->eval();
  const at::Tensor logits = net->forward(images);
  const at::Tensor expected = at::tensor(labels, at::kLong);

  const Evaluation found = evaluation_on(2);
  EXPECT_EQ(found.confusion.correct(),
            logits.argmax(1).eq(expected).sum().item<std::int64_t>());
  EXPECT_NEAR(found.mean_loss(),
              at::cross_entropy_loss(logits, expected).item<double>(), 1e-5);

  const Predictions predictions =
      predictions_on(3, {.classes = 10, .batch_size = 10});
  EXPECT_TRUE(at::equal(predictions.labels, expected));
  EXPECT_TRUE(at::equal(predictions.predicted, logits.argmax(1)));
  EXPECT_TRUE(at::allclose(predictions.probability,
                           std::get<0>(logits.softmax(1).max(1)), 1e-5));
  EXPECT_FALSE(predictions.probabilities.defined());
}

TEST_F(EvaluationOfAModel, PredictsTheSameBitsOnAnyNumberOfRanks) {
  for (const bool probabilities : {false, true}) {
    const EvaluationOptions wanted{
        .classes = 10, .batch_size = 10, .probabilities = probabilities};
    const Predictions one = predictions_on(1, wanted);
    ASSERT_EQ(one.predicted.numel(), kSamples);
    for (const int ranks : {2, 3, 13}) {
      const Predictions several = predictions_on(ranks, wanted);
      EXPECT_TRUE(at::equal(several.labels, one.labels)) << ranks;
      EXPECT_TRUE(at::equal(several.predicted, one.predicted)) << ranks;
      EXPECT_TRUE(at::equal(several.probability, one.probability)) << ranks;
      ASSERT_EQ(several.probabilities.defined(), probabilities);
      if (!probabilities) continue;
      EXPECT_TRUE(at::equal(several.probabilities, one.probabilities));
    }
  }
}

TEST_F(EvaluationOfAModel, GivesTheProbabilityOfEveryClassIfAskedFor) {
  const Predictions found = predictions_on(
      2, {.classes = 10, .batch_size = 10, .probabilities = true});
  ASSERT_EQ(found.probabilities.sizes(), (at::IntArrayRef{kSamples, 10}));
  const auto [most, which] = found.probabilities.max(1);
  EXPECT_TRUE(at::equal(most, found.probability));
  EXPECT_TRUE(at::equal(which, found.predicted));
  EXPECT_TRUE(at::allclose(found.probabilities.sum(1), at::ones({kSamples})));
}

// Rank 1 is in its first block until rank 0 has been through all of its own.
TEST_F(EvaluationOfAModel, LetsNoRankWaitForAnotherDuringThePass) {
  std::promise<void> rank_0_done;
  const auto done = rank_0_done.get_future().share();
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    int blocks = 0;
    const Forward forward = [&](const at::Tensor& images) {
      ++blocks;
      if (group->rank() == 0 && blocks == 6) rank_0_done.set_value();
      if (group->rank() == 1) {
        EXPECT_EQ(done.wait_for(std::chrono::minutes(1)),
                  std::future_status::ready);
      }
      return at::zeros({images.size(0), 10});
    };
    const auto result = evaluate(forward, samples_, options(group));
    EXPECT_EQ(result.confusion.samples(), kSamples);
  });
}

// With dropout and batch statistics.
struct NetWithDropout : torch::nn::Module {
  torch::nn::BatchNorm2d norm{
      register_module("norm", torch::nn::BatchNorm2d(1))};
  std::shared_ptr<StripeNet> rest{
      register_module("rest", std::make_shared<StripeNet>())};
  at::Tensor forward(const at::Tensor& images) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_FALSE(norm->is_training() || rest->is_training());
    return rest->forward(norm(images));
  }
};

TEST_F(EvaluationOfAModel, LeavesTheModelAsItWas) {
  run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
    NetWithDropout net;  // without another owner
    net.train();
    net.norm->eval();  // as frozen statistics are
    const at::Tensor before = net.norm->running_mean.clone();
    evaluate(net, samples_, options(group));
    predict(net, samples_, options(group));
    EXPECT_TRUE(net.is_training());
    EXPECT_TRUE(net.rest->is_training());
    EXPECT_FALSE(net.norm->is_training());
    EXPECT_TRUE(at::equal(net.norm->running_mean, before));
  });
}

// Every tenth block's first, so that all ranks have some.
struct Broken final : SampleSource {
  explicit Broken(const SampleSource& from) : samples(from) {}
  std::int64_t size() const override { return samples.size(); }
  ImageShape shape() const override { return samples.shape(); }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override {
    if (index % 20 == 0) throw InvalidArgument("truncated");
    return samples.read(index, epoch, image);
  }
  const SampleSource& samples;
};

TEST_F(EvaluationOfAModel, LeavesOutTheBrokenSamplesThatArePermitted) {
  const Broken samples(samples_);
  for (const int ranks : {1, 2, 3})
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      EvaluationOptions permitting = options(group);
      permitting.max_broken = 6;
      const Evaluation found = evaluate(*model(), samples, permitting);
      EXPECT_EQ(found.confusion.samples(), kSamples - 6);
      EXPECT_EQ(found.broken,
                "6 images were broken and left out, the first: truncated");
    });
  run_ranks("shm", 1, [&](const std::shared_ptr<ProcessGroup>& group) {
    EvaluationOptions few = options(group);
    EXPECT_EQ(error_text([&] { evaluate(*model(), samples, few); }),
              "truncated");
    few.max_broken = 5;
    EXPECT_THAT(error_text([&] { evaluate(*model(), samples, few); }),
                HasSubstr("more than 5 samples"));
  });
}

TEST_F(EvaluationOfAModel, PredictsWithEmptyRowsForBrokenSamples) {
  const Predictions whole = predictions_on(1, options(nullptr));
  const Broken samples(samples_);
  for (const int ranks : {1, 3})
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      EvaluationOptions permitting = options(group);
      permitting.max_broken = 6;
      permitting.probabilities = true;
      const Predictions found = predict(*model(), samples, permitting);
      if (group->rank() != 0) return;
      ASSERT_EQ(found.broken.size(), 6u);
      EXPECT_EQ(found.broken[5].index, 100);
      EXPECT_EQ(found.broken[5].message, "truncated");
      for (std::int64_t i = 0; i < kSamples; ++i) {
        const bool broken = i % 20 == 0;
        const auto expected =
            broken ? kNoLabel : whole.predicted[i].item<std::int64_t>();
        EXPECT_EQ(found.predicted[i].item<std::int64_t>(), expected) << i;
        EXPECT_EQ(std::isnan(found.probability[i].item<float>()), broken);
        EXPECT_EQ(found.probabilities[i].isnan().all().item<bool>(), broken);
      }
    });
}

TEST_F(EvaluationOfAModel, NamesAllBrokenSamplesThatItDoesNotPredict) {
  const Broken samples(samples_);
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const std::string error =
        error_text([&] { predict(*model(), samples, options(group)); });
    EXPECT_THAT(error, StartsWith("cannot predict: 6 samples are broken\n"
                                  "  truncated\n  truncated\n"));
    // They all lie in blocks of rank 0.
    EXPECT_THAT(error, HasSubstr("--max-broken 6"));
  });
}

TEST_F(EvaluationOfAModel, RefusesWhatCannotBe) {
  const Forward five = [](const at::Tensor& images) {
    return at::zeros({images.size(0), 5});
  };
  const auto refusal = [&](const EvaluationOptions& given) {
    return refusal_of(five, given, dataset_);
  };
  EXPECT_THAT(refusal({.classes = 10}),
              AllOf(HasSubstr("gave 103 x 5 numbers for 103 images of 10"),
                    HasSubstr("\n  next:    ")));
  EXPECT_THAT(refusal({.classes = 5}), HasSubstr("no class "));
  EXPECT_THAT(refusal({}), HasSubstr("0 classes"));
  EXPECT_THAT(refusal({.classes = 10, .batch_size = 0}),
              HasSubstr("batches of 0"));
  EXPECT_THAT(refusal_of(five, {.classes = 5}, striped_images(0, 1)),
              HasSubstr("no samples"));
}

// Rank 1's own buffers would change all its results.
TEST_F(EvaluationOfAModel, TakesRankZerosBuffersOfAWrappedOne) {
  struct Scaled : torch::nn::Module {
    explicit Scaled(int rank)
        : linear(register_module("linear", torch::nn::Linear(784, 10))),
          sign(register_buffer("sign", at::full({1}, 1.0 - 2 * rank))) {}
    at::Tensor forward(const at::Tensor& images) {
      return linear(images.flatten(1)) * sign;
    }
    torch::nn::Linear linear;
    at::Tensor sign;
  };
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    auto wrapped = DistributedDataParallel(Scaled(0), {.group = group});
    const auto expected = evaluate(*wrapped, samples_, options(group));
    wrapped->sign.fill_(1.0 - 2 * group->rank());
    EXPECT_EQ(evaluate(wrapped, samples_, options({})).loss, expected.loss);
    wrapped->sign.fill_(1.0 - 2 * group->rank());
    const auto found = predict(wrapped, samples_, options({}));
    if (group->rank() != 0) return;
    EXPECT_EQ(found.predicted.eq(found.labels).sum().item<std::int64_t>(),
              expected.confusion.correct());
  });
}

TEST(PredictionFile, LeavesTheRowOfABrokenSampleEmpty) {
  const std::array<std::int64_t, 2> predicted{kNoLabel, 1};
  const std::array<std::int64_t, 2> labels{kNoLabel, 0};
  const std::array<float, 2> probability{NAN, 0.75F};
  const std::array<float, 4> probabilities{NAN, NAN, 0.25F, 0.75F};
  PredictionTable table{.labels = {},
                        .predicted = predicted,
                        .probability = probability,
                        .paths = {"a", "b"}};
  EXPECT_EQ(to_csv(table),
            "index,path,predicted,probability\n0,a,,\n1,b,1,0.75\n");
  table.labels = labels;
  table.probabilities = probabilities;
  table.class_names = {"cat", "dog"};
  EXPECT_EQ(to_csv(table),
            "index,path,label,predicted,class,probability,cat,dog\n"
            "0,a,,,,,,\n"
            "1,b,0,1,dog,0.75,0.25,0.75\n");
}

TEST_F(EvaluationOfAModel, PredictsImagesWithoutLabels) {
  const Predictions labelled = predictions_on(2, options(nullptr));
  dataset_.labels.clear();
  const Predictions found = predictions_on(2, options(nullptr));
  EXPECT_TRUE(found.predicted.equal(labelled.predicted));
  EXPECT_TRUE(found.labels.eq(kNoLabel).all().item<bool>());
  EXPECT_EQ(to_csv({.labels = {},
                    .predicted = std::array<std::int64_t, 2>{3, 1},
                    .probability = std::array<float, 2>{0.5F, 1.0F}}),
            "index,predicted,probability\n0,3,0.5\n1,1,1\n");
}

class ImagesInAFile : public ::testing::Test {
 protected:
  std::string file() const { return folder_ / "images"; }
  ImageDataset read() const { return read_unlabelled_images(file(), like_); }
  std::string refusal() const {
    return error_text([&] { read(); });
  }
  void write_tensor(SafetensorsType type, std::vector<std::int64_t> shape,
                    const std::string& name = "images") const {
    std::size_t bytes = size_of(type);
    for (const std::int64_t extent : shape)
      bytes *= static_cast<std::size_t>(extent);
    const std::vector<std::byte> pixels(bytes, std::byte{7});
    write_safetensors(
        file(),
        std::vector<TensorBytes>{
            {.name = name, .type = type, .shape = shape, .bytes = pixels}});
  }

  TestDirectory folder_;
  ImageDataset like_ = describe_dataset("fashion-mnist");
};

TEST_F(ImagesInAFile, AreIdxOrATensorOfBytes) {
  for (const bool idx : {true, false}) {
    if (idx)
      std::ofstream(file(), std::ios::binary) << std::string(
          "\0\0\x08\x03\0\0\0\x02\0\0\0\x03\0\0\0\x02"
          "\7\7\7\7\7\7\7\7\7\7\7\7",
          28);
    else
      write_tensor(SafetensorsType::kU8, {2, 3, 2});
    const ImageDataset found = read();
    EXPECT_EQ(found.title, "images");
    EXPECT_EQ(found.count, 2);
    EXPECT_EQ(found.channels, 1);
    EXPECT_EQ(found.height, 3);
    EXPECT_EQ(found.width, 2);
    EXPECT_EQ(found.images, std::vector<std::uint8_t>(12, 7));
    EXPECT_THAT(found.labels, ::testing::IsEmpty());
    EXPECT_EQ(found.class_names[9], "Ankle boot");
    EXPECT_EQ(ImageSamples(found).size(), 2);
  }
  write_tensor(SafetensorsType::kU8, {4, 1, 3, 2});
  EXPECT_EQ(read().count, 4);
}

TEST_F(ImagesInAFile, ThatAreNoneAreRefused) {
  write_tensor(SafetensorsType::kF32, {2, 3, 2});
  EXPECT_THAT(refusal(), AllOf(HasSubstr("of type F32, expected U8"),
                               HasSubstr("next:    name an IDX file")));
  write_tensor(SafetensorsType::kU8, {2, 3});
  EXPECT_THAT(refusal(), HasSubstr("has the shape 2 x 3"));
  write_tensor(SafetensorsType::kU8, {2, 3, 4, 4});
  EXPECT_THAT(refusal(), HasSubstr("3 channels, but those of Fashion-MNIST "
                                   "have 1"));
  write_tensor(SafetensorsType::kU8, {0, 3, 4});
  EXPECT_THAT(refusal(), HasSubstr("its shape is 0 x 1 x 3 x 4"));
  std::ofstream(file()) << "these are words, and long enough";
  EXPECT_THAT(refusal(), HasSubstr(file()));
}

TEST(Metrics, AreSummedOverTheRanks) {
  run_ranks("shm", 3, [](const std::shared_ptr<ProcessGroup>& group) {
    const std::int64_t n = group->rank() + 1;
    const Metrics sum = reduce(
        {.loss = 0.5 * static_cast<double>(n), .correct = n, .samples = 2 * n},
        *group);
    EXPECT_EQ(sum, (Metrics{.loss = 3, .correct = 6, .samples = 12}));
    EXPECT_EQ(sum.mean_loss(), 0.25);
    EXPECT_EQ(sum.accuracy(), 0.5);
  });
}

}  // namespace
}  // namespace lockstep
