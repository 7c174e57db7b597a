// Training that goes on when a rank dies, without restarting the others.
//
//     lockstep run -n 3 --in-place --min-ranks 2 ./elastic 55
//     lockstep run -n 3 --in-place --max-restarts 1 ./elastic 55
//
// The last rank kills itself after 55 steps. The others return to the step that
// they committed last, the 50th, and go on without it, or with a new rank.
// Without a number no rank dies, and the program also runs alone.
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace elastic = lockstep::elastic;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSteps = 200;

// Whether this process is the one that shows what a death does: the last rank,
// not one that replaces it.
bool is_victim() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return (restarts == nullptr || std::string(restarts) == "0") &&
         lockstep::rank() == lockstep::size() - 1;
}

// A batch of this rank, the same each time for the same step.
at::Tensor batch_of(std::int64_t step) {
  torch::manual_seed(step * lockstep::size() + lockstep::rank());
  return torch::rand({32, 2}) * 2 - 1;
}

void take_step(
    lockstep::DistributedDataParallel<torch::nn::SequentialImpl>& model,
    torch::optim::Optimizer& optimizer, std::int64_t step) {
  const at::Tensor points = batch_of(step);
  const at::Tensor labels = points.square().sum(1).lt(0.6).to(torch::kLong);
  optimizer.zero_grad();
  torch::cross_entropy_loss(model(points), labels).backward();
  optimizer.step();
}

int main(int count, char** arguments) {
  const std::int64_t death = count > 1 ? std::stol(arguments[1]) : -1;
  torch::nn::Sequential net(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                            torch::nn::Linear(32, 2));
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9));
  std::int64_t step = 0;
  elastic::State state({.model = net.ptr(),
                        .optimizer = &optimizer,
                        .counters = {{"step", &step}}});

  int groups = 0;
  Clock::time_point last_step = Clock::now();
  elastic::run(state, [&](elastic::State&) {
    // Everything that belongs to a group is made here, anew for each group.
    lockstep::DistributedDataParallel model(net);
    const bool dies = ++groups == 1 && is_victim();
    const std::int64_t first = step;
    while (step < kSteps) {
      if (dies && step == death) ::kill(::getpid(), SIGKILL);
      take_step(model, optimizer, step);
      const Clock::duration since = Clock::now() - last_step;
      if (groups > 1 && step == first && lockstep::rank() == 0)
        std::printf(
            "goes on at step %ld with %d ranks, %.0f ms after the last\n",
            static_cast<long>(step), lockstep::size(),
            std::chrono::duration<double, std::milli>(since).count());
      last_step = Clock::now();
      if (++step % 10 == 0) state.commit();
    }
  });
  std::printf("rank %d of %d: %ld steps, in %d group%s\n", lockstep::rank(),
              lockstep::size(), static_cast<long>(step), groups,
              groups == 1 ? "" : "s");
  return 0;
}
