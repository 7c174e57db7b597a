// One rank of a run that saves checkpoints, in one file and in shards:
//
//   lockstep_checkpoint_cost HIDDEN sgd|sharded FOLDER REQUESTS
//
// It trains the mlp of `lockstep train` with two hidden layers of HIDDEN units
// on 64 images of 1 x 28 x 28 per rank, under DistributedDataParallel, with a
// fused SGD with momentum, or AdamW in a ZeroRedundancyOptimizer. Answers four
// questions of the driver (requests.h); FORMAT is single or sharded, and a
// checkpoint goes into FOLDER/FORMAT:
//
//   steps N          the median time of so many steps
//   save FORMAT N    the time of save(), that of N steps after it, and that of
//                    finish(); of each the longest of all ranks
//   load FORMAT      the time in which the newest checkpoint is restored
//   memory           the peaks of all ranks, added up
#include <torch/nn/functional/loss.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "apps/trainer/model/models.h"
#include "benchmarks/requests.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/main_function.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kSeed = 1234;
constexpr std::int64_t kImages = 64;
constexpr std::int64_t kClasses = 10;

ModelOptions mlp_of(std::int64_t hidden) {
  return {.classes = kClasses, .hidden = {hidden, hidden}, .seed = kSeed};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& kind, const std::vector<at::Tensor>& parameters) {
  if (kind == "sharded")
    return std::make_unique<ZeroRedundancyOptimizer>(
        parameters, torch::optim::AdamWOptions(3e-4),
        ZeroRedundancyOptimizerOptions{.averages_gradients = true});
  return std::make_unique<FusedSGD>(
      parameters, torch::optim::SGDOptions(0.01).momentum(0.5));
}

class SavingRun {
 public:
  SavingRun(std::int64_t hidden, const std::string& optimizer,
            std::filesystem::path folder)
      : group_(init_process_group()),
        model_(make_model("mlp", mlp_of(hidden))),
        replica_(model_,
                 DistributedDataParallelOptions{.average_gradients =
                                                    optimizer != "sharded"}),
        optimizer_(make_optimizer(optimizer, model_->parameters())),
        single_(folder / "single", {.keep = 1, .group = group_}),
        sharded_(folder / "sharded", {.keep = 1,
                                      .format = CheckpointFormat::kSharded,
                                      .group = group_}) {
    torch::manual_seed(kSeed + static_cast<std::uint64_t>(group_->rank()));
    images_ = torch::randn({kImages, 1, 28, 28});
    labels_ = torch::randint(0, kClasses, {kImages}, torch::kLong);
  }

  int rank() const { return group_->rank(); }
  std::int64_t parameters() const { return parameter_count(*model_); }

  void train() {
    optimizer_->zero_grad();
    torch::nn::functional::cross_entropy(replica_.forward(images_), labels_)
        .backward();
    optimizer_->step();
    ++step_;
  }
  void save(const std::string& format) { folder(format).save(state(), step_); }
  void finish(const std::string& format) { folder(format).finish(); }
  void load(const std::string& format) {
    if (!folder(format).resume(state()))
      throw InvalidArgument("there is no checkpoint to load");
  }

  // Milliseconds of `action`, which all ranks begin together: the longest.
  double timed(const std::function<void()>& action) {
    group_->barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    action();
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - begin;
    return std::ranges::max(gather(took.count()));
  }

  // Every rank's `value`.
  std::vector<double> gather(double value) {
    std::vector<double> own{value};
    std::vector<double> all(static_cast<std::size_t>(group_->size()));
    group_->all_gather(view(own), view(all)).wait();
    return all;
  }

 private:
  CheckpointFolder& folder(const std::string& format) {
    return format == "sharded" ? sharded_ : single_;
  }
  TrainingState state() {
    return {.model = model_,
            .optimizer = optimizer_.get(),
            .counters = {{"step", &step_}}};
  }

  std::shared_ptr<ProcessGroup> group_;
  std::shared_ptr<Classifier> model_;
  DistributedDataParallel<Classifier> replica_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  CheckpointFolder single_;
  CheckpointFolder sharded_;
  at::Tensor images_, labels_;
  std::int64_t step_ = 0;
};

std::string answer_steps(SavingRun& run, int steps) {
  std::vector<double> times(static_cast<std::size_t>(std::max(1, steps)));
  for (double& time : times) time = run.timed([&] { run.train(); });
  return R"({"step_ms": )" + std::to_string(median(times)) + "}";
}

std::string answer_save(SavingRun& run, const std::string& format, int steps) {
  const double save = run.timed([&] { run.save(format); });
  const double after = run.timed([&] {
    for (int i = 0; i < steps; ++i) run.train();
  });
  const double rest = run.timed([&] { run.finish(format); });
  return R"({"save_ms": )" + std::to_string(save) + R"(, "after_ms": )" +
         std::to_string(after) + R"(, "finish_ms": )" + std::to_string(rest) +
         "}";
}

std::string answer(SavingRun& run, const std::string& request) {
  std::istringstream words(request);
  std::string what, format;
  int steps = 0;
  words >> what;
  if (what == "steps") {
    words >> steps;
    return answer_steps(run, steps);
  }
  words >> format >> steps;
  if (what == "save") return answer_save(run, format, steps);
  if (what == "load")
    return R"({"load_ms": )" +
           std::to_string(run.timed([&] { run.load(format); })) + "}";
  const std::vector<double> peaks = run.gather(peak_mib());
  return R"({"peak_mib": )" +
         std::to_string(std::accumulate(peaks.begin(), peaks.end(), 0.0)) +
         R"(, "parameters": )" + std::to_string(run.parameters()) + "}";
}

int run(std::span<const char* const> words) {
  const std::vector<std::string> arguments(words.begin(), words.end());
  if (arguments.size() != 4)
    throw InvalidArgument(
        "usage: lockstep_checkpoint_cost HIDDEN sgd|sharded FOLDER REQUESTS");
  torch::set_num_threads(1);
  SavingRun run(std::stol(arguments[0]), arguments[1], arguments[2]);
  answer_requests(arguments[3], run.rank(), [&](const std::string& request) {
    return answer(run, request);
  });
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_main(count, arguments, lockstep::run);
}
