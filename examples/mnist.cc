// mnist_plain.cc on one rank or on many, with the same numbers:
//
//     ./mnist FOLDER                       of the unpacked files t10k-*-ubyte
//     lockstep run -n 2 ./mnist FOLDER     two ranks, each on half of a batch
//
// (*) marks the differences.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

#include "mnist_net.h"
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
  auto model =
      lockstep::DistributedDataParallel(std::make_shared<Net>());  // (*)
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(0.05).momentum(0.5));

  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    at::Tensor total = torch::zeros({}, torch::kDouble);
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(model.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      total += loss.detach();
    }
    lockstep::all_reduce(*group, total, lockstep::ReduceOp::kAverage)  // (*)
        .wait();
    if (group->rank() == 0)  // (*)
      std::printf("epoch %d: mean loss %.6f\n", epoch,
                  total.item<double>() * kBatch / kSamples);
  }
  print_weights("net", *model);
}
