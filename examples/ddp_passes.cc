// Passes that differ: gradients accumulated over several batches, branches that
// a pass does not use, ranks that run out of data.
//
//     lockstep run -n 4 ./ddp_passes
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

// An expert for each half of the inputs' space.
struct Experts : torch::nn::Module {
  at::Tensor forward(const at::Tensor& points, int side) {
    return head(torch::tanh(side == 0 ? left(points) : right(points)));
  }
  torch::nn::Linear left = register_module("left", torch::nn::Linear(2, 16));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(2, 16));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(16, 1));
};

struct Batch {
  at::Tensor points, targets;
};

// Points with x below 0 (side 0) or above, and their targets.
Batch random_batch(int side) {
  const at::Tensor points =
      torch::rand({32, 2}) - torch::tensor({side == 0 ? 1.0F : 0.0F, 0.5F});
  return {points, points.select(1, 0).abs().unsqueeze(1)};
}

using Model = lockstep::DistributedDataParallel<Experts>;

at::Tensor loss_of(Model& model, int side) {
  const auto [points, targets] = random_batch(side);
  return torch::mse_loss(model(points, side), targets);
}

// One step of four batches: the gradients of three of them stay on this rank,
// and the last pass reduces the sum of all.
void accumulated_step(Model& model, torch::optim::Optimizer& optimizer,
                      int side) {
  optimizer.zero_grad();
  {
    const auto guard = model.no_sync();
    for (int i = 0; i < 3; ++i) (loss_of(model, side) / 4).backward();
  }
  (loss_of(model, side) / 4).backward();
  optimizer.step();
}

// An epoch in which this rank has its own number of batches.
void uneven_epoch(Model& model, torch::optim::Optimizer& optimizer,
                  int batches) {
  const auto scope = model.join();
  for (int i = 0; i < batches; ++i) {
    optimizer.zero_grad();
    loss_of(model, i % 2).backward();
    optimizer.step();
  }
}  // here a rank without data takes part until all ranks are done

int main() {
  const auto group = lockstep::init_process_group();
  torch::manual_seed(group->rank());  // each rank has its own points

  Model model(Experts(), {.find_unused_parameters = true});
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  for (int step = 0; step < 60; ++step)
    accumulated_step(model, optimizer, (step + group->rank()) % 2);
  for (int epoch = 0; epoch < 10; ++epoch)
    uneven_epoch(model, optimizer, 5 + 3 * group->rank());

  at::Tensor loss;
  {
    const torch::NoGradGuard no_grad;
    loss = (loss_of(model, 0) + loss_of(model, 1)) / 2;
  }
  lockstep::all_reduce(*group, loss, lockstep::ReduceOp::kAverage).wait();
  if (group->rank() == 0) std::printf("loss %.4f\n", loss.item<double>());
  return loss.item<double>() < 0.05 ? 0 : 1;
}
