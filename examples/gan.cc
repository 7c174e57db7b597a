// gan_plain.cc on one rank or on many, with the same numbers:
//
//     ./gan FOLDER                       of the unpacked files t10k-*-ubyte
//     lockstep run -n 2 ./gan FOLDER     two ranks, each on half of a batch
//
// (*) marks the differences.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "gan_nets.h"
#include "weights.h"

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]), 2;
  lockstep::init_process_group();                // (*)
  const auto group = lockstep::default_group();  // (*)
  using torch::data::datasets::MNIST;
  auto data = MNIST(argv[1], MNIST::Mode::kTest)
                  .map(torch::data::transforms::Normalize<>(0.5, 0.5))
                  .map(torch::data::transforms::Stack<>());
  // Unshuffled, like LibTorch's sampler: both programs see the same batches.
  const lockstep::DistributedSampler sampler(kSamples,
                                             {.shuffle = false});  // (*)
  const auto loader = torch::data::make_data_loader(
      std::move(data), sampler, kBatch / group->size());  // (*)

  torch::manual_seed(1);
  auto net = make_generator();
  lockstep::convert_sync_batch_norm(*net);  // (*) statistics of all ranks
  auto generator = lockstep::DistributedDataParallel(net);  // (*)
  auto discriminator =
      lockstep::DistributedDataParallel(make_discriminator());  // (*)
  torch::optim::SGD generator_optimizer(generator.parameters(), 0.05);
  torch::optim::SGD discriminator_optimizer(discriminator.parameters(), 0.05);

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    at::Tensor totals = torch::zeros({2}, torch::kDouble);
    for (auto& batch : *loader) {
      // Every rank draws the noise of all ranks, and takes the rows of its
      // samples.
      const at::Tensor noise =
          torch::randn({kBatch, kNoise})
              .slice(0, group->rank(), std::nullopt, group->size());  // (*)
      const at::Tensor images = generator.forward(noise);

      discriminator_optimizer.zero_grad();
      const at::Tensor told =
          loss_against(discriminator.forward(batch.data), 1) +
          loss_against(discriminator.forward(images.detach()), 0);
      told.backward();
      discriminator_optimizer.step();

      generator_optimizer.zero_grad();
      freeze(*discriminator);
      // (*) without the wrapper, which has no gradients to average here
      const at::Tensor fooled =
          loss_against(discriminator.module()->forward(images), 1);
      fooled.backward();
      thaw(*discriminator);
      generator_optimizer.step();
      totals += torch::stack({told, fooled}).detach();
    }
    lockstep::all_reduce(*group, totals, lockstep::ReduceOp::kAverage)  // (*)
        .wait();
    totals *= static_cast<double>(kBatch) / kSamples;
    if (group->rank() == 0)  // (*)
      std::printf("epoch %d: mean loss %.6f, generator %.6f\n", epoch,
                  totals[0].item<double>(), totals[1].item<double>());
  }
  print_weights("generator", *generator);
  print_weights("discriminator", *discriminator);
}
