// Evaluates a trained model on a test set that the ranks divide: its accuracy,
// the classes that it confuses, and its prediction for each image.
//
//     ./evaluate                       alone
//     lockstep run -n 4 ./evaluate     each rank has a quarter of the test set
//
// With the same weights the numbers are the same on any number of ranks. For a
// model that `lockstep train` has saved use the commands lockstep evaluate and
// lockstep predict.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(784, 64));
  torch::nn::Linear output =
      register_module("output", torch::nn::Linear(64, 10));
};

// A hundred steps, enough to recognise most images.
void train(lockstep::DistributedDataParallel<Net>& model) {
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples samples(dataset);
  lockstep::DistributedSampler sampler(samples.size());
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  lockstep::Loader loader(samples, sampler.indices(), {.batch_size = 64});
  for (int step = 0; step < 100; ++step) {
    auto batch = loader.next(lockstep::Deadline::never());
    const auto [images, labels] = lockstep::as_tensors(std::move(*batch));
    optimizer.zero_grad();
    torch::cross_entropy_loss(model(images), labels).backward();
    optimizer.step();
  }
}

int main() {
  const auto group = lockstep::init_process_group();
  auto model = lockstep::DistributedDataParallel(Net());
  train(model);

  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTest);
  const lockstep::ImageSamples test(dataset);
  const auto result = lockstep::evaluate(model, test, {.classes = 10});
  const auto& confusion = result.confusion;

  const auto found = lockstep::predict(model, test, {.classes = 10});
  if (group->rank() != 0) return 0;

  std::printf("%.2f %% of %lld images are recognised\n",
              100 * confusion.accuracy(),
              static_cast<long long>(confusion.samples()));
  for (std::int64_t i = 0; i < confusion.classes(); ++i)
    std::printf("  %-12s %6.2f %%\n", dataset.class_names[i].c_str(),
                100 * confusion.recall(i));
  const auto least = found.probability.argmin().item<std::int64_t>();
  std::printf("image %lld is the one that the model is least sure about\n",
              static_cast<long long>(least));

  // Both passes gave the same predictions.
  const auto right = found.predicted.eq(found.labels).sum();
  return right.item<std::int64_t>() == confusion.correct() &&
                 confusion.accuracy() > 0.5
             ? 0
             : 1;
}
