// A classifier in LibTorch alone, before mnist.cc makes it data-parallel:
//
//     ./mnist_plain FOLDER     of the unpacked files t10k-*-ubyte
#include <torch/torch.h>

#include <cstdio>

#include "mnist_net.h"
#include "weights.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  using torch::data::datasets::MNIST;
  auto data = MNIST(argv[1], MNIST::Mode::kTest)
                  .map(torch::data::transforms::Normalize<>(0.5, 0.5))
                  .map(torch::data::transforms::Stack<>());
  const torch::data::samplers::SequentialSampler sampler(kSamples);
  const auto loader =
      torch::data::make_data_loader(std::move(data), sampler, kBatch);

  torch::manual_seed(1);
  auto model = std::make_shared<Net>();
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.5));

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    at::Tensor total = torch::zeros({}, torch::kDouble);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(model->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      total += loss.detach();
    }
    std::printf("epoch %d: mean loss %.6f\n", epoch,
                total.item<double>() * kBatch / kSamples);
  }
  print_weights("net", *model);
}
