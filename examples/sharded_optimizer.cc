// AdamW with clipped gradients, where each rank keeps only its share of the
// state; the program saves the state, which loads at any world size.
//
//     ./sharded_optimizer                       alone
//     lockstep run -n 4 ./sharded_optimizer     a quarter of the state each
//
// (*) marks the differences from an ordinary LibTorch program; see
// quickstart.cc for DistributedDataParallel.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <sstream>

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
  lockstep::ZeroRedundancyOptimizer optimizer(  // (*)
      model.parameters(), torch::optim::AdamWOptions(0.01));

  double loss_of_last_step = 0;
  for (int step = 0; step < 300; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = torch::cross_entropy_loss(model(points), labels);
    loss.backward();
    optimizer.clip_grad_norm(1.0);  // (*) costs no pass over the gradients
    optimizer.step();
    loss_of_last_step = loss.item<double>();
  }
  std::printf("rank %d: loss %.3f, %zu bytes of state\n", group->rank(),
              loss_of_last_step, optimizer.state_bytes());

  // Rank 0 gets the complete state and writes it, here to a string.
  optimizer.consolidate_state_dict(0);  // (*) on every rank
  if (group->rank() == 0) {
    std::stringstream file;
    torch::save(optimizer, file);

    // The file is an ordinary optimizer's.
    torch::optim::AdamW alone(model.parameters(),
                              torch::optim::AdamWOptions(0.01));
    torch::load(alone, file);
    std::printf("saved the state of %zu parameters\n", alone.state().size());
  }
  return loss_of_last_step < 0.3 ? 0 : 1;
}
