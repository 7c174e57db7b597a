// Batch normalization over the samples of all ranks.
//
//     ./sync_batch_norm                       alone
//     lockstep run -n 4 ./sync_batch_norm     the same weights
//
// A batch has 32 images, and each of 4 ranks has 8 of them: too few for good
// statistics. After convert_sync_batch_norm() every layer sees all 32.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>

constexpr std::int64_t kBatch = 32;

// A member of a class is a lockstep::BatchNorm, which takes the options of
// LibTorch's layers and equals them until its conversion.
struct Stem : torch::nn::Module {
  Stem() {
    conv = register_module("conv", torch::nn::Conv2d(1, 8, 3));
    norm = register_module("norm",
                           lockstep::BatchNorm(torch::nn::BatchNormOptions(8)));
  }
  at::Tensor forward(const at::Tensor& images) {
    return torch::relu(norm(conv(images)));
  }
  torch::nn::Conv2d conv{nullptr};
  lockstep::BatchNorm norm{nullptr};
};

// A Sequential may hold LibTorch's own layers.
torch::nn::Sequential make_model() {
  torch::manual_seed(1234);
  return torch::nn::Sequential(
      Stem(), torch::nn::Conv2d(8, 8, 3), torch::nn::BatchNorm2d(8),
      torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(8 * 64, 2));
}

struct Batch {
  at::Tensor images, labels;
};

// Rank `rank`'s part of batch `step`. The label says which half is brighter.
Batch part_of_batch(int step, int rank, int ranks) {
  torch::manual_seed(step);
  const at::Tensor labels = torch::randint(0, 2, {kBatch}, torch::kLong);
  const at::Tensor images = torch::randn({kBatch, 1, 12, 12});
  for (std::int64_t i = 0; i < kBatch; ++i)
    images[i][0].narrow(0, 6 * labels[i].item<std::int64_t>(), 6) += 0.5;
  const std::int64_t begin = kBatch * rank / ranks;
  const std::int64_t count = kBatch * (rank + 1) / ranks - begin;
  return {images.narrow(0, begin, count), labels.narrow(0, begin, count)};
}

int main() {
  torch::set_num_threads(1);
  const auto group = lockstep::init_process_group();
  auto net = make_model();
  const int layers = lockstep::convert_sync_batch_norm(*net);
  // Statistics are the same on all ranks, so rank 0 need not broadcast its own.
  auto model =
      lockstep::DistributedDataParallel(net, {.broadcast_buffers = false});
  lockstep::FusedSGD optimizer(model.parameters(),
                               torch::optim::SGDOptions(0.1));

  double loss = 0;
  for (int step = 0; step < 60; ++step) {
    const auto [images, labels] =
        part_of_batch(step, group->rank(), group->size());
    optimizer.zero_grad();
    const at::Tensor mean_loss =
        torch::cross_entropy_loss(model(images), labels);
    mean_loss.backward();
    optimizer.step();
    loss = mean_loss.item<double>();
  }
  const auto buffers = net->named_buffers();
  std::printf("rank %d: %d layers synchronized, loss %.3f, running mean %.4f\n",
              group->rank(), layers, loss,
              buffers["0.norm.running_mean"][0].item<double>());
  lockstep::destroy_process_group();
  return loss < 0.3 && layers == 2 ? 0 : 1;
}
