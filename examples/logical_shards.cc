// Training that ends with the same bits on 1, 2, 4 and 8 ranks.
//
//     ./logical_shards                       alone
//     lockstep run -n 4 ./logical_shards     the same checksum
//
// (*) marks the additions to an ordinary LibTorch program. The module is not
// wrapped: LogicalShards averages the gradients.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr int kShards = 8;

std::shared_ptr<torch::nn::SequentialImpl> make_model() {
  torch::manual_seed(1234);
  return torch::nn::Sequential(torch::nn::Linear(2, 64),
                               torch::nn::BatchNorm1d(64), torch::nn::Tanh(),
                               torch::nn::Dropout(0.1),
                               torch::nn::Linear(64, 2))
      .ptr();
}

// Shard `shard` of batch `step`, the same on every rank: 32 points, labelled by
// whether they lie in a circle.
struct Part {
  at::Tensor points, labels;
};
Part part_of_batch(int step, int shard) {
  torch::manual_seed(step * kShards + shard);
  const at::Tensor points = torch::rand({32, 2}) * 2 - 1;
  return {points, points.square().sum(1).lt(0.6).to(torch::kLong)};
}

// A checksum of the bits of all weights.
std::uint64_t checksum(const torch::nn::Module& module) {
  std::uint64_t sum = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    const at::Tensor weights = parameter.detach().contiguous();
    const auto* number = weights.const_data_ptr<float>();
    for (std::int64_t i = 0; i < weights.numel(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, number + i, sizeof bits);
      sum = sum * 31 + bits;
    }
  }
  return sum;
}

int main() {
  torch::set_num_threads(1);  // (*) more threads add in another order
  const auto group = lockstep::init_process_group();
  const auto model = make_model();
  lockstep::LogicalShards shards(model, {.count = kShards, .seed = 1});  // (*)
  lockstep::FusedAdam optimizer(model->parameters(),
                                torch::optim::AdamOptions(0.01));

  double loss_of_last_pass = 0;
  for (int step = 0; step < 200; ++step) {
    shards.run([&](const lockstep::LogicalShard& shard) {  // (*)
      const auto [points, labels] = part_of_batch(step, shard.index);
      torch::manual_seed(shard.seed);  // (*) for dropout
      const at::Tensor loss =
          torch::cross_entropy_loss(model->forward(points), labels);
      loss.backward();
      loss_of_last_pass = loss.item<double>();
    });
    optimizer.step();  // .grad is the average over all shards
  }
  std::printf("rank %d: loss %.3f, checksum %016llx\n", group->rank(),
              loss_of_last_pass,
              static_cast<unsigned long long>(checksum(*model)));
  return loss_of_last_pass < 0.5 ? 0 : 1;
}
