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

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace elastic = lockstep::elastic;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kSteps = 200;
constexpr std::int64_t kSamples = 2000;
constexpr std::int64_t kBatch = 32;  // of a rank

// Whether this process is the one that shows what a death does: the last rank,
// not one that replaces it.
bool is_victim() {
  const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
  return (restarts == nullptr || std::string(restarts) == "0") &&
         lockstep::get_rank() == lockstep::get_world_size() - 1;
}

// The dataset, the same on every rank.
at::Tensor make_points() {
  torch::manual_seed(0);
  return torch::rand({kSamples, 2}) * 2 - 1;
}

void take_step(
    lockstep::DistributedDataParallel<torch::nn::SequentialImpl>& model,
    torch::optim::Optimizer& optimizer, const at::Tensor& points) {
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
  // The position in the data: the epoch, and the samples of it that all ranks
  // together have seen.
  std::int64_t step = 0, epoch = 0, consumed = 0;
  elastic::State state(
      {.model = net.ptr(),
       .optimizer = &optimizer,
       .counters = {
           {"step", &step}, {"epoch", &epoch}, {"consumed", &consumed}}});
  const at::Tensor points = make_points();

  int groups = 0;
  Clock::time_point last_step = Clock::now();
  elastic::run(state, [&](elastic::State&) {
    // Everything that belongs to a group is made here, anew for each group.
    lockstep::DistributedDataParallel model(net);
    const bool dies = ++groups == 1 && is_victim();
    const std::int64_t first = step;
    // This rank's share of what the epoch still has, for the present ranks.
    const auto rest_of_epoch = [&] {
      return lockstep::sampler_sequence(
          kSamples, {.world_size = lockstep::get_world_size(),
                     .rank = lockstep::get_rank(),
                     .epoch = static_cast<std::uint64_t>(epoch),
                     .consumed = consumed});
    };
    std::vector<std::int64_t> order = rest_of_epoch();
    for (auto next = order.begin(); step < kSteps;) {
      if (dies && step == death) ::kill(::getpid(), SIGKILL);
      const auto size = std::min(kBatch, std::int64_t{order.end() - next});
      const std::vector<std::int64_t> batch(next, next + size);
      take_step(model, optimizer, points.index_select(0, torch::tensor(batch)));
      const Clock::duration since = Clock::now() - last_step;
      if (groups > 1 && step == first && lockstep::get_rank() == 0)
        std::printf(
            "goes on at step %ld with %d ranks, %.0f ms after the last\n",
            static_cast<long>(step), lockstep::get_world_size(),
            std::chrono::duration<double, std::milli>(since).count());
      last_step = Clock::now();
      next += size;
      consumed += size * lockstep::get_world_size();
      if (next == order.end()) {
        ++epoch;
        consumed = 0;
        order = rest_of_epoch();
        next = order.begin();
      }
      if (++step % 10 == 0) state.commit();
    }
  });
  std::printf("rank %d of %d: %ld steps, in %d group%s\n", lockstep::get_rank(),
              lockstep::get_world_size(), static_cast<long>(step), groups,
              groups == 1 ? "" : "s");
  return 0;
}
