// One process, two devices: DataParallel divides every batch over them. Here
// they are two slots of the CPU; on a machine with GPUs, name some of them, or
// leave `devices` out to use all.
#include <lockstep/lockstep.h>
#include <lockstep/torch/data_parallel.h>
#include <torch/torch.h>

#include <cstdio>

using lockstep::data_parallel::DataParallel;

struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    hidden = register_module("hidden", torch::nn::Linear(784, 128));
    output = register_module("output", torch::nn::Linear(128, 10));
  }
  at::Tensor forward(const at::Tensor& images) {
    return output(torch::relu(hidden(images.flatten(1))));
  }
  torch::nn::Linear hidden{nullptr}, output{nullptr};
};
TORCH_MODULE(Net);

int main() {
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples train(dataset);

  DataParallel model(Net(), {.devices = {at::kCPU, at::kCPU}});
  torch::optim::SGD optimizer(model.parameters(), 0.1);

  lockstep::Loader loader(train, lockstep::sampler_sequence(train.size(), {}),
                          {.batch_size = 128});
  double total = 0;
  while (auto batch = loader.next(lockstep::Deadline::never())) {
    const auto [images, labels] = lockstep::as_tensors(std::move(*batch));
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model(images), labels);
    loss.backward();  // in each replica's thread
    optimizer.step();
    total += loss.item<double>();
  }
  std::printf("mean loss %.3f\n",
              total / static_cast<double>(loader.batch_count()));
  for (const lockstep::data_parallel::DeviceMemory& memory : model.memory())
    std::printf("%s: %zu kB of parameters, %zu kB of the last batch\n",
                memory.device.str().c_str(), memory.replica_bytes / 1000,
                (memory.input_bytes + memory.output_bytes) / 1000);
}
