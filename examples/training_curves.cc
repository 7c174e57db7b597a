// Curves for TensorBoard from your own training loop.
//
//     ./training_curves                       alone
//     lockstep run -n 2 ./training_curves     rank 0 writes for both
//
// Your own program uses a permanent folder, and `tensorboard --logdir FOLDER`
// shows it.
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

int main() {
  const auto group = lockstep::init_process_group();
  const auto folder = std::filesystem::temp_directory_path() /
                      ("training_curves-" + std::to_string(::getpid()));

  std::optional<lockstep::EventFile> events;
  if (group->rank() == 0) {
    std::filesystem::create_directories(folder);
    events.emplace(folder);
  }

  torch::manual_seed(group->rank());
  const at::Tensor points = torch::rand({256, 2}) * 2 - 1;
  const at::Tensor labels = points.square().sum(1).lt(0.6).to(torch::kLong);
  auto model = lockstep::DistributedDataParallel(torch::nn::Sequential(
      torch::nn::Linear(2, 32), torch::nn::Tanh(), torch::nn::Linear(32, 2)));
  torch::optim::SGD optimizer(model.parameters(),
                              torch::optim::SGDOptions(0.5).momentum(0.9));

  std::vector<double> loss{0};
  for (int step = 1; step <= 50; ++step) {
    optimizer.zero_grad();
    const at::Tensor own = torch::cross_entropy_loss(model(points), labels);
    own.backward();
    const double norm = lockstep::clip_grad_norm(model.parameters(), 5);
    optimizer.step();
    if (step % 10 != 0) continue;
    // The average over all ranks: every rank takes part, rank 0 writes.
    loss[0] = own.item<double>();
    group->all_reduce(lockstep::view(loss), lockstep::ReduceOp::kAverage)
        .wait();
    if (events)
      events->add(step,
                  {{"train/loss", loss[0]}, {"train/gradient_norm", norm}});
  }

  if (events) {
    std::printf("the loss fell to %.2f; its curve was in %s\n", loss[0],
                events->path().filename().c_str());
    std::filesystem::remove_all(folder);
  }
  group->barrier().wait();
  return loss[0] < 0.5 ? 0 : 1;
}
