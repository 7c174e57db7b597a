// Checks that all ranks hold the same model and read different data: a report
// on the first steps, and a periodic fingerprint of the weights.
//
//     lockstep run -n 4 ./consistency
//
// Rank 1 changes a weight on purpose after step 250, as a memory fault might:
// the fingerprint detects it.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <iostream>

torch::nn::Sequential make_model() {
  torch::manual_seed(1234);
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 2));
}

struct Batch {
  at::Tensor points, labels;
};
Batch next_batch() {
  const at::Tensor points = torch::rand({16, 2}) * 2 - 1;
  return {points, points.square().sum(1).lt(0.6).to(torch::kLong)};
}

int main() {
  torch::set_num_threads(1);
  const auto group = lockstep::init_process_group();
  const bool first = group->rank() == 0;
  auto net = make_model();
  auto model = lockstep::DistributedDataParallel(net);
  torch::optim::SGD optimizer(model.parameters(), 0.1);
  torch::manual_seed(group->rank());  // different samples on each rank

  lockstep::ConsistencyReport report(net.ptr(),
                                     {.steps = 2, .show = {"2.bias"}});
  lockstep::RunningFingerprint fingerprint(net.ptr(), {.every = 100});

  bool found = false;
  for (int step = 1; step <= 400 && !found; ++step) {
    const auto [points, labels] = next_batch();
    optimizer.zero_grad();
    report.data(points);
    const at::Tensor output = model(points);
    report.outputs(output);
    const at::Tensor loss = torch::cross_entropy_loss(output, labels);
    report.loss(loss);
    loss.backward();
    report.gradients();
    optimizer.step();
    report.step_done();
    if (first) std::cout << report.take_text();

    if (step == 250 && group->rank() == 1) {
      const torch::NoGradGuard no_grad;
      net->parameters()[0][7][1] += 0.001;
    }
    try {
      fingerprint.step_done();
    } catch (const lockstep::Mismatch& drift) {
      found = true;
      if (first) std::cout << drift.what() << std::endl;
    }
  }
  // A single rank has no other rank to differ from.
  const bool right = report.consistent() && found == (group->size() > 1);
  lockstep::destroy_process_group();
  return right ? 0 : 1;
}
