// Two networks that learn from each other (Goodfellow et al., "Generative
// Adversarial Nets", NeurIPS 2014), in LibTorch alone, before gan.cc makes them
// data-parallel:
//
//     ./gan_plain FOLDER     of the unpacked files t10k-*-ubyte
#include <torch/torch.h>

#include <cstdio>

#include "gan_nets.h"
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
  auto generator = make_generator();
  auto discriminator = make_discriminator();
  torch::optim::SGD generator_optimizer(generator->parameters(), 0.05);
  torch::optim::SGD discriminator_optimizer(discriminator->parameters(), 0.05);

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    at::Tensor totals = torch::zeros({2}, torch::kDouble);
    for (auto& batch : *loader) {
      const at::Tensor noise = torch::randn({kBatch, kNoise});
      const at::Tensor images = generator->forward(noise);

      discriminator_optimizer.zero_grad();
      const at::Tensor told =
          loss_against(discriminator->forward(batch.data), 1) +
          loss_against(discriminator->forward(images.detach()), 0);
      told.backward();
      discriminator_optimizer.step();

      generator_optimizer.zero_grad();
      freeze(*discriminator);
      const at::Tensor fooled = loss_against(discriminator->forward(images), 1);
      fooled.backward();
      thaw(*discriminator);
      generator_optimizer.step();
      totals += torch::stack({told, fooled}).detach();
    }
    totals *= static_cast<double>(kBatch) / kSamples;
    std::printf("epoch %d: mean loss %.6f, generator %.6f\n", epoch,
                totals[0].item<double>(), totals[1].item<double>());
  }
  print_weights("generator", *generator);
  print_weights("discriminator", *discriminator);
}
