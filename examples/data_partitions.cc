// The program of PyTorch's tutorial "Writing distributed applications", in C++:
// each rank trains on its own part of the data, and the program averages
// gradients by hand.
//
//     lockstep run -n 4 ./data_partitions
//
// DistributedSampler and DistributedDataParallel, as in quickstart.cc, do both
// better: the sampler divides every epoch anew, and ranks reduce gradients
// while backward runs.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& images) {
    at::Tensor x = torch::relu(torch::max_pool2d(first(images), 2));
    x = torch::relu(torch::max_pool2d(second(x), 2));
    return output(torch::relu(hidden(x.flatten(1))));
  }
  torch::nn::Conv2d first =
      register_module("first", torch::nn::Conv2d(1, 10, 5));
  torch::nn::Conv2d second =
      register_module("second", torch::nn::Conv2d(10, 20, 5));
  torch::nn::Linear hidden =
      register_module("hidden", torch::nn::Linear(320, 50));
  torch::nn::Linear output =
      register_module("output", torch::nn::Linear(50, 10));
};

// The samples of this rank: a fifth of the data is divided into one equal part
// per rank. The seed is the same on every rank, and so are the parts.
std::vector<std::int64_t> own_part(std::int64_t samples) {
  const auto group = lockstep::default_group();
  const std::vector<double> sizes(static_cast<std::size_t>(group->size()),
                                  0.2 / group->size());
  const lockstep::DataPartitioner parts(samples, {.sizes = sizes});
  const auto own = parts.use(static_cast<std::size_t>(group->rank()));
  return {own.begin(), own.end()};
}

void average_gradients(const torch::nn::Module& model) {
  const auto group = lockstep::default_group();
  for (const at::Tensor& parameter : model.parameters()) {
    at::Tensor gradient = parameter.grad();
    lockstep::all_reduce(*group, gradient, lockstep::ReduceOp::kSum).wait();
    gradient /= group->size();
  }
}

int main() {
  const auto group = lockstep::init_process_group();
  const auto dataset =
      lockstep::load_dataset("fashion-mnist", lockstep::Split::kTrain);
  const lockstep::ImageSamples train(dataset);
  const auto part = own_part(train.size());

  torch::manual_seed(1234);  // all ranks begin with the same weights
  Net model;
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(0.02).momentum(0.5));

  double mean = 0;
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    lockstep::Loader loader(
        train, part, {.batch_size = 128 / group->size(), .epoch = epoch});
    double total = 0;
    while (auto batch = loader.next(lockstep::Deadline::never())) {
      const auto [images, labels] = lockstep::as_tensors(std::move(*batch));
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(model.forward(images), labels);
      loss.backward();
      average_gradients(model);
      optimizer.step();
      total += loss.item<double>();
    }
    mean = total / static_cast<double>(loader.batch_count());
    std::printf("rank %d, epoch %d: mean loss %.3f\n", group->rank(),
                static_cast<int>(epoch), mean);
  }
  return mean < 1 ? 0 : 1;
}
