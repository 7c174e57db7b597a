// one_process.cc on all ranks, with Horovod's API. (*) marks the changes.
//
//     lockstep run -n 2 ./horovod
#include <lockstep/lockstep.h>
#include <lockstep/torch/horovod.h>
#include <torch/torch.h>

#include <cstdio>

namespace hvd = lockstep::horovod;  // (*)

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
  hvd::init();  // (*)
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples train(dataset);

  Net net;
  hvd::DistributedOptimizer optimizer(  // (*)
      torch::optim::SGD(net.parameters(), 0.1), net.named_parameters());
  hvd::broadcast_parameters(net);             // (*)
  hvd::broadcast_optimizer_state(optimizer);  // (*)

  const int ranks = hvd::size(), rank = hvd::rank();  // (*)
  for (std::size_t epoch = 0; epoch < 2; ++epoch) {
    const auto order = lockstep::sampler_sequence(
        train.size(), {.world_size = ranks, .rank = rank, .epoch = epoch});
    lockstep::Loader loader(train, order, {.batch_size = 64, .epoch = epoch});
    double total = 0;
    while (auto batch = loader.next(lockstep::Deadline::never())) {
      const auto [images, labels] = lockstep::as_tensors(std::move(*batch));
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(net.forward(images), labels);
      loss.backward();
      optimizer.step();
      total += loss.item<double>();
    }
    if (rank == 0)  // (*)
      std::printf("epoch %zu: mean loss %.3f\n", epoch + 1,
                  total / static_cast<double>(loader.batch_count()));
  }
}
