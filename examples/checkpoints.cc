// Training that can be stopped at any moment and resumed: the program saves the
// complete state of a run periodically, and resumes from the newest checkpoint.
//
//     ./checkpoints                       alone
//     lockstep run -n 4 ./checkpoints     with 4 ranks
//
// To show that nothing is lost, main() runs the same training twice for each
// format: in one piece, and in two parts, where the second part knows only the
// checkpoints of the first. Your own program calls train() once, with a
// permanent folder.
#include <lockstep/lockstep.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>

constexpr std::int64_t kEpochs = 4;
constexpr std::int64_t kBatches = 8;  // of a rank, in an epoch
constexpr double kRate = 0.1;         // at first
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

torch::nn::Sequential make_model() {
  torch::manual_seed(1234);  // the same on every rank
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                               torch::nn::Dropout(0.1),
                               torch::nn::Linear(32, 2));
}

// Points of this rank, labelled by whether they lie in a circle: the same in
// every call.
struct Share {
  at::Tensor points, labels;
};
Share share_of_data(int rank) {
  torch::manual_seed(rank);
  const at::Tensor points = torch::rand({kBatches * 32, 2}) * 2 - 1;
  return {points, points.square().sum(1).lt(0.6).to(torch::kLong)};
}

// A run of 4 epochs, or its first `most_steps` steps. Returns the weights.
at::Tensor train(const std::filesystem::path& path, std::int64_t most_steps,
                 lockstep::CheckpointFormat format) {
  const auto group = lockstep::default_group();
  auto model = lockstep::DistributedDataParallel(make_model());
  const auto [points, labels] = share_of_data(group->rank());
  lockstep::FusedSGD optimizer(model.parameters(),
                               torch::optim::SGDOptions(kRate).momentum(0.9));
  torch::manual_seed(100 + group->rank());  // for dropout

  // Everything that changes during training. By default the state includes
  // LibTorch's generator of random numbers, from which dropout draws.
  std::int64_t epoch = 0, step = 0;
  const lockstep::TrainingState state{
      .model = model.module(),
      .optimizer = &optimizer,
      .counters = {{"epoch", &epoch}, {"step", &step}}};

  lockstep::CheckpointFolder folder(path, {.keep = 3, .format = format});
  if (const auto found = folder.resume(state); found && group->rank() == 0)
    std::printf("going on at epoch %d, step %d\n", static_cast<int>(epoch),
                static_cast<int>(step));

  // The schedule begins with the first rate, which resume() has replaced.
  for (auto& parameters : optimizer.param_groups())
    parameters.options().set_lr(kRate);
  torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.5);
  for (std::int64_t i = 0; i < epoch; ++i) schedule.step();

  for (; epoch < kEpochs; ++epoch, step = 0, schedule.step()) {
    while (step < kBatches) {
      if (most_steps-- == 0) return {};
      optimizer.zero_grad();
      torch::cross_entropy_loss(model(points.narrow(0, step * 32, 32)),
                                labels.narrow(0, step * 32, 32))
          .backward();
      optimizer.step();
      ++step;
      if (step % 3 == 0) folder.save(state, epoch * kBatches + step);
    }
  }
  folder.finish();  // throws if the last checkpoint could not be written

  // A program can save or read a copy of the weights while it continues to
  // train the model.
  const auto copy = lockstep::module_cpu_copy(*model);
  if (group->rank() == 0)
    lockstep::save_checkpoint(path.string() + ".safetensors", *copy);
  return torch::nn::utils::parameters_to_vector(copy->parameters());
}

// Whether a run in two parts ends with the weights of a run in one piece.
bool resumes_exactly(const std::filesystem::path& base,
                     lockstep::CheckpointFormat format) {
  const at::Tensor at_once = train(base / "at_once", kForEver, format);
  // Ends early, as if the job were stopped.
  train(base / "in_parts", 21, format);
  return at_once.equal(train(base / "in_parts", kForEver, format));
}

int main() {
  const auto group = lockstep::init_process_group();
  // All ranks write to a folder of rank 0's choice.
  const std::string choice = "checkpoints-" + std::to_string(::getpid());
  const auto name =
      lockstep::broadcast_bytes(*group, std::as_bytes(std::span(choice)), 0);
  const auto base =
      std::filesystem::temp_directory_path() /
      std::string(reinterpret_cast<const char*>(name.data()), name.size());
  const bool equal =
      resumes_exactly(base / "files",
                      lockstep::CheckpointFormat::kSafetensors) &&
      resumes_exactly(base / "shards", lockstep::CheckpointFormat::kSharded);
  group->barrier().wait();
  if (group->rank() == 0) std::filesystem::remove_all(base);

  std::printf("rank %d: the weights are %s\n", group->rank(),
              equal ? "the same to the bit" : "NOT the same");
  return equal ? 0 : 1;
}
