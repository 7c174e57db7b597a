// Computes in float16 and keeps weights in float32: LibTorch's autocast, and a
// gradient scaler that skips the same steps on every rank.
//
//     ./mixed_precision                       alone
//     lockstep run -n 2 ./mixed_precision     each on half of the points
//
// (*) marks what float16 adds; bfloat16 needs only autocast. See quickstart.cc
// for DistributedDataParallel.
#include <ATen/autocast_mode.h>
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

// The forward pass and the loss belong inside, the backward pass outside.
struct Float16Scope {
  Float16Scope() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  }
  ~Float16Scope() {
    at::autocast::clear_cache();  // weights in float16, which the step changes
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
};

torch::nn::Sequential make_model() {
  torch::manual_seed(1234);
  return torch::nn::Sequential(torch::nn::Linear(2, 64), torch::nn::Tanh(),
                               torch::nn::Linear(64, 2));
}

// This rank's share of 1024 points, labelled by whether they lie in a circle.
struct Share {
  at::Tensor points, labels;
};
Share share_of_data(int rank, int ranks) {
  torch::manual_seed(1234);
  const at::Tensor points = torch::rand({1024, 2}) * 2 - 1;
  const at::Tensor labels = points.square().sum(1).lt(0.6).to(torch::kLong);
  const std::int64_t length = 1024 / ranks;
  return {points.narrow(0, rank * length, length),
          labels.narrow(0, rank * length, length)};
}

int main() {
  const auto group = lockstep::init_process_group();
  const auto [points, labels] = share_of_data(group->rank(), group->size());

  auto model = lockstep::DistributedDataParallel(make_model());
  lockstep::FusedAdam optimizer(model.parameters(),
                                torch::optim::AdamOptions(0.01));
  lockstep::GradientScaler scaler;  // (*)

  int left_out = 0;
  double loss_of_last_step = 0;
  for (int step = 0; step < 300; ++step) {
    at::Tensor loss;
    {
      const Float16Scope scope;  // (*)
      const at::Tensor output = model(points);
      loss = torch::cross_entropy_loss(output.to(torch::kFloat), labels);
    }
    optimizer.zero_grad();
    scaler.scale(loss).backward();  // (*)
    scaler.unscale_(optimizer);     // (*) before clipping reads gradients
    optimizer.clip_grad_norm(1.0);
    if (!scaler.step(optimizer)) ++left_out;  // (*) the same on every rank
    scaler.update();                          // (*)
    loss_of_last_step = loss.item<double>();
  }
  std::printf("rank %d: loss %.3f, %d steps left out, scale %g\n",
              group->rank(), loss_of_last_step, left_out, scaler.get_scale());
  return loss_of_last_step < 0.3 ? 0 : 1;
}
