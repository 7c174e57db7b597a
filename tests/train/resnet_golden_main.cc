// The initial weights, outputs and trained weights of our ResNets, for
// resnet_golden.py.
//
//   lockstep_resnet_golden MODEL SIDE SEED DIRECTORY
//
// DIRECTORY holds images.f32 (6 x 3 x SIDE x SIDE) and labels.i64. The program
// writes there: initial.safetensors, trained.safetensors after three steps on
// them, and logits.f32, the trained model's output in evaluation.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "apps/trainer/model/models.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "src/torch/testing/tensor_file.h"

namespace lockstep {
namespace {

// The same numbers stand in resnet_golden.py.
constexpr std::int64_t kImages = 6;
constexpr std::int64_t kClasses = 10;
constexpr int kSteps = 3;
constexpr double kLearningRate = 0.01;

void run(const std::string& name, std::int64_t side, std::uint64_t seed,
         const std::string& directory) {
  const auto images = read_tensor(directory + "/images.f32",
                                  {kImages, 3, side, side}, at::kFloat);
  const auto labels =
      read_tensor(directory + "/labels.i64", {kImages}, at::kLong);
  const auto model = make_model(name, {.channels = 3,
                                       .height = side,
                                       .width = side,
                                       .classes = kClasses,
                                       .seed = seed});
  save_checkpoint(directory + "/initial.safetensors", *model);
  torch::optim::SGD optimizer(model->parameters(), kLearningRate);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    torch::cross_entropy_loss(model->forward(images), labels).backward();
    optimizer.step();
  }
  save_checkpoint(directory + "/trained.safetensors", *model);
  model->eval();
  const torch::NoGradGuard no_grad;
  write_tensor(directory + "/logits.f32", model->forward(images));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: %s MODEL SIDE SEED DIRECTORY\n", argv[0]);
    return 2;
  }
  try {
    torch::set_num_threads(1);
    lockstep::run(argv[1], std::stol(argv[2]), std::stoul(argv[3]), argv[4]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
