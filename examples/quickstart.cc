// Trains a small network on Fashion-MNIST, on one rank or on many:
//
//     ./quickstart                       alone
//     lockstep run -n 2 ./quickstart     two ranks, each on half of every epoch
//
// (*) marks what data parallelism adds to an ordinary LibTorch program.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(784, 128));
  torch::nn::Linear output =
      register_module("output", torch::nn::Linear(128, 10));
};

int main() {
  const auto group = lockstep::init_process_group();  // (*)
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples train(dataset);

  torch::manual_seed(0);
  auto model = lockstep::DistributedDataParallel(Net());  // (*)
  lockstep::DistributedSampler sampler(train.size());     // (*)
  torch::optim::SGD optimizer(model.parameters(), 0.1);

  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);  // (*)
    lockstep::Loader loader(train, sampler.indices(),
                            {.batch_size = 64, .epoch = epoch});
    double total = 0;
    while (auto batch = loader.next(lockstep::Deadline::never())) {
      const auto [images, labels] = lockstep::as_tensors(std::move(*batch));
      optimizer.zero_grad();
      const at::Tensor loss = torch::cross_entropy_loss(model(images), labels);
      loss.backward();  // averages the gradients over the ranks meanwhile
      optimizer.step();
      total += loss.item<double>();
    }
    if (group->rank() == 0)
      std::printf("epoch %zu: mean loss %.3f\n", epoch + 1,
                  total / static_cast<double>(loader.batch_count()));
  }
}
