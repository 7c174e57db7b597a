// A program that has computed with LibTorch spawns ranks, which compute and add
// up:
//
//   lockstep_spawn forked|anew RANKS
//
// With forked, prepare_spawn() has made the process that forks them; with anew
// each rank executes the program again. The program says when it calls spawn(),
// each rank when it begins, and rank 0 when the first sum is finished, in
// seconds of CLOCK_MONOTONIC. A wrong gradient or sum ends the program with 1.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "lockstep/lockstep.h"

namespace {

void say(const char* what) {
  const std::chrono::duration<double> now =
      std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%s %f\n", what, now.count());
  std::fflush(stdout);
}

// A backward pass with two compute threads; the gradient of a sum of squares.
torch::Tensor compute(double value) {
  const torch::Tensor weights =
      torch::full({256, 256}, value, torch::requires_grad());
  weights.mm(torch::eye(256)).square().sum().backward();
  if (!weights.grad().eq(2 * value).all().item<bool>())
    throw std::runtime_error("the gradient is wrong");
  return weights.grad();
}

void rank_main(int rank) {
  say("begun");
  lockstep::init_process_group();
  const auto group = lockstep::default_group();
  torch::Tensor sum = compute(rank + 1);
  lockstep::all_reduce(*group, sum, lockstep::ReduceOp::kSum).wait();
  if (!sum.eq(group->size() * (group->size() + 1)).all().item<bool>())
    throw std::runtime_error("the sum is wrong");
  if (rank == 0) say("reduced");
}

}  // namespace

int main(int count, char** words) try {
  if (count != 3) throw std::invalid_argument("usage: forked|anew RANKS");
  if (std::string(words[1]) == "forked") lockstep::prepare_spawn();
  torch::set_num_threads(2);
  compute(1);
  say("called");
  lockstep::spawn(rank_main, std::stoi(words[2]));
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
