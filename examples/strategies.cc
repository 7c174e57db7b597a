// A training step written once, for one replica, and run by each of
// TensorFlow's strategies:
//
//     ./strategies                      two slots of the CPU, mirrored, then
//                                       with variables in one place
//     lockstep run -n 2 ./strategies    a replica in each process; so does
//                                       TF_CONFIG, on one host or several
#include <lockstep/lockstep.h>
#include <lockstep/torch/strategies.h>
#include <torch/torch.h>

#include <cstdio>

namespace strategies = lockstep::strategies;
using strategies::ReplicaContext;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(784, 128));
  torch::nn::Linear output =
      register_module("output", torch::nn::Linear(128, 10));
};

// One loss per sample: compute_average_loss() divides by the global batch.
at::Tensor losses_of(const at::Tensor& logits, const at::Tensor& labels) {
  return torch::cross_entropy_loss(logits, labels, {}, at::Reduction::None);
}

// Returns the mean loss of an epoch.
double train(strategies::Strategy& strategy,
             const lockstep::ImageSamples& data) {
  auto net = strategy.create([] { return std::make_shared<Net>(); });
  auto optimizer = strategy.create_optimizer(
      net, [](auto parameters) { return torch::optim::SGD(parameters, 0.1); });
  auto batches = strategy.distribute_dataset(data, {.global_batch = 128});
  double total = 0;
  while (auto batch = batches.next()) {
    const auto losses = strategy.run([&](const ReplicaContext& here) {
      const auto& [images, labels] = (*batch)[here];
      optimizer[here].zero_grad();
      const at::Tensor loss =
          strategy.compute_average_loss(losses_of(net[here](images), labels));
      loss.backward();  // adds up the gradients of all replicas
      optimizer[here].step();
      return loss.detach();
    });
    total += strategy.reduce(lockstep::ReduceOp::kSum, losses).item<double>();
  }
  return total / static_cast<double>(batches.batch_count());
}

int main() {
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples data(dataset);

  strategies::MultiWorkerMirroredStrategy workers;
  if (workers.num_replicas_in_sync() > 1) {
    std::printf("workers: mean loss %.3f\n", train(workers, data));
    return 0;
  }
  strategies::MirroredStrategy mirrored({.devices = {at::kCPU, at::kCPU}});
  std::printf("mirrored: mean loss %.3f\n", train(mirrored, data));
  strategies::CentralStorageStrategy central({.devices = {at::kCPU, at::kCPU}});
  std::printf("central: mean loss %.3f\n", train(central, data));
}
