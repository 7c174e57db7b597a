// Trains a model for 50 steps in one process, and on several ranks that take
// equal shares of the same batches, and compares the weights.
//
//   lockstep_ddp_golden DIRECTORY MODEL RANKS WAY…
//
// WAY is sgd, under DistributedDataParallel, or another frontend with the same
// optimizer: horovod, mirrored, central, multi-worker, data-parallel. Or it is
// zero: AdamW with clipped gradients; the ranks shard the optimizer's state,
// the single process does not.
//
// In DIRECTORY lie weights.f32, images.f32 and labels.i64, as ddp_golden.py
// writes them; the ranks' weights go to WAY.f32 there. Without it, which is -,
// weights and data come from a seed. Prints the largest difference; exit code 1
// when it is above 1e-5.
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "apps/trainer/model/models.h"
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/flat_parameters.h"
#include "src/torch/testing/tensor_file.h"

namespace lockstep {
namespace {

// The same numbers stand in ddp_golden.py.
constexpr int kSteps = 50;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kSamples = kSteps * kBatch;
constexpr double kLearningRate = 0.05;
constexpr double kMomentum = 0.5;
constexpr double kZeroLearningRate = 0.001;
constexpr double kZeroEps = 1e-4;
constexpr double kMaxNorm = 1;

constexpr double kTolerance = 1e-5;
constexpr char kNone[] = "-";  // instead of a directory
constexpr int kSeed = 1;

struct Job {
  std::string model;
  std::string way;
  at::Tensor weights;  // of all parameters, one after another
  at::Tensor images, labels;
};

std::shared_ptr<Classifier> new_model(const std::string& name) {
  return make_model(name, {.dropout = 0, .seed = kSeed});
}

Job seeded_job(const std::string& model, const std::string& way) {
  torch::manual_seed(kSeed);
  return {model, way, flat_parameters(*new_model(model)),
          torch::randn({kSamples, 1, 28, 28}),
          torch::randint(10, {kSamples}, at::kLong)};
}

Job read_job(const std::string& model, const std::string& way,
             const std::string& directory) {
  const auto count = parameter_count(*new_model(model));
  return {
      model, way, read_tensor(directory + "/weights.f32", {count}, at::kFloat),
      read_tensor(directory + "/images.f32", {kSamples, 1, 28, 28}, at::kFloat),
      read_tensor(directory + "/labels.i64", {kSamples}, at::kLong)};
}

using Group = std::shared_ptr<ProcessGroup>;

torch::optim::SGD sgd(std::vector<at::Tensor> parameters) {
  return torch::optim::SGD(
      std::move(parameters),
      torch::optim::SGDOptions(kLearningRate).momentum(kMomentum));
}

// For the ranks of `group`, or for a single process without a group.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Job& job, const torch::nn::Module& module, const Group& group) {
  const auto adamw =
      torch::optim::AdamWOptions(kZeroLearningRate).eps(kZeroEps);
  if (job.way != "zero")
    return std::make_unique<torch::optim::SGD>(sgd(module.parameters()));
  if (!group)
    return std::make_unique<torch::optim::AdamW>(module.parameters(), adamw);
  return std::make_unique<ZeroRedundancyOptimizer>(
      module.parameters(), adamw,
      ZeroRedundancyOptimizerOptions{.group = group});
}

void make_step(const Job& job, torch::optim::Optimizer& optimizer) {
  auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer);
  if (sharded != nullptr)
    sharded->clip_grad_norm(kMaxNorm);
  else if (job.way == "zero")
    clip_grad_norm(optimizer.param_groups()[0].params(), kMaxNorm);
  optimizer.step();
}

// The part of step `step`'s batch that belongs to rank `rank` of `ranks`.
struct Share {
  at::Tensor images, labels;
};
Share share_of(const Job& job, int step, int rank, int ranks) {
  const std::int64_t length = kBatch / ranks;
  const std::int64_t first = step * kBatch + rank * length;
  return {job.images.narrow(0, first, length),
          job.labels.narrow(0, first, length)};
}

// `forward` is the module's, or that of the wrapper around it.
template <class Forward>
at::Tensor train(const Job& job, const torch::nn::Module& module,
                 const Forward& forward, const Group& group) {
  const auto optimizer = make_optimizer(job, module, group);
  for (int step = 0; step < kSteps; ++step) {
    const Share share = share_of(job, step, group ? group->rank() : 0,
                                 group ? group->size() : 1);
    optimizer->zero_grad();
    torch::cross_entropy_loss(forward(share.images), share.labels).backward();
    make_step(job, *optimizer);
  }
  return flat_parameters(module);
}

at::Tensor weights_of_one_process(const Job& job) {
  const auto model = new_model(job.model);
  set_flat_parameters(*model, job.weights);
  const auto forward = [&](const at::Tensor& x) { return model->forward(x); };
  return train(job, *model, forward, nullptr);
}

// The model of all ranks except the first: other weights, which rank 0's
// replace.
std::shared_ptr<Classifier> model_of_rank(const Job& job, int rank) {
  const auto model = new_model(job.model);
  if (rank == 0) set_flat_parameters(*model, job.weights);
  return model;
}

at::Tensor weights_under_ddp(const Job& job, const Group& group) {
  const auto model = model_of_rank(job, group->rank());
  auto replica = DistributedDataParallel(
      model, {.group = group, .first_bucket_bytes = std::size_t{1} << 14});
  const auto forward = [&](const at::Tensor& x) { return replica(x); };
  return train(job, *model, forward, group);
}

at::Tensor weights_by_horovod(const Job& job, const Group& group) {
  const auto model = model_of_rank(job, group->rank());
  horovod::DistributedOptimizer optimizer(
      sgd(model->parameters()), model->named_parameters(), {.group = group});
  horovod::broadcast_parameters(*model, 0, group);
  horovod::broadcast_optimizer_state(optimizer, 0, group);
  for (int step = 0; step < kSteps; ++step) {
    const Share share = share_of(job, step, group->rank(), group->size());
    optimizer.zero_grad();
    torch::cross_entropy_loss(model->forward(share.images), share.labels)
        .backward();
    optimizer.step();
  }
  return flat_parameters(*model);
}

at::Tensor weights_by_strategy(const Job& job, strategies::Strategy& strategy) {
  auto net = strategy.create([&](const strategies::ReplicaContext& here) {
    return model_of_rank(job, here.replica_id_in_sync_group());
  });
  auto optimizer = strategy.create_optimizer(net, sgd);
  for (int step = 0; step < kSteps; ++step)
    strategy.run([&](const strategies::ReplicaContext& here) {
      const Share share = share_of(job, step, here.replica_id_in_sync_group(),
                                   here.num_replicas_in_sync());
      optimizer[here].zero_grad();
      strategy
          .compute_average_loss(torch::cross_entropy_loss(
              net[here](share.images), share.labels, {}, at::Reduction::None))
          .backward();
      optimizer[here].step();
    });
  return flat_parameters(*net.local());
}

at::Tensor weights_by_data_parallel(const Job& job,
                                    const std::vector<at::Device>& devices) {
  auto model = data_parallel::DataParallel(
      model_of_rank(job, 0),
      {.devices = devices, .factory = [&] { return new_model(job.model); }});
  const auto forward = [&](const at::Tensor& x) { return model(x); };
  return train(job, *model, forward, nullptr);
}

// The result of rank 0 in a group of threads.
template <class Train>
at::Tensor of_first_rank(int ranks, const Train& train_rank) {
  at::Tensor result;
  run_ranks("shm", ranks, [&](const Group& group) {
    const at::Tensor weights = train_rank(group);
    if (group->rank() == 0) result = weights;
  });
  return result;
}

at::Tensor weights_of_ranks(const Job& job, int ranks) {
  const std::vector<at::Device> devices(static_cast<std::size_t>(ranks),
                                        at::kCPU);
  if (job.way == "sgd" || job.way == "zero")
    return of_first_rank(ranks, [&](const Group& group) {
      return weights_under_ddp(job, group);
    });
  if (job.way == "horovod")
    return of_first_rank(ranks, [&](const Group& group) {
      return weights_by_horovod(job, group);
    });
  if (job.way == "multi-worker")
    return of_first_rank(ranks, [&](const Group& group) {
      strategies::MultiWorkerMirroredStrategy strategy(group);
      return weights_by_strategy(job, strategy);
    });
  if (job.way == "mirrored") {
    strategies::MirroredStrategy strategy({.devices = devices});
    return weights_by_strategy(job, strategy);
  }
  if (job.way == "central") {
    strategies::CentralStorageStrategy strategy({.devices = devices});
    return weights_by_strategy(job, strategy);
  }
  if (job.way == "data-parallel") return weights_by_data_parallel(job, devices);
  throw std::invalid_argument("there is no way in called " + job.way);
}

// Whether the ranks' weights match those of one process.
bool compare(const Job& job, int ranks, const std::string& directory) {
  const at::Tensor one = weights_of_one_process(job);
  const at::Tensor many = weights_of_ranks(job, ranks);
  if (directory != kNone)
    write_tensor(directory + "/" + job.way + ".f32", many);
  const double difference = (one - many).abs().max().item<double>();
  const double moved = (one - job.weights).abs().max().item<double>();
  std::printf(
      "%s, %s: weights of %d ranks differ from one process's by at most %.2g; "
      "training moved them by %.2g\n",
      job.model.c_str(), job.way.c_str(), ranks, difference, moved);
  return difference <= kTolerance && moved > 0.01;
}

int compare_all(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s DIRECTORY MODEL RANKS WAY...\n", argv[0]);
    return 2;
  }
  torch::set_num_threads(1);
  const std::string directory = argv[1];
  const std::string model = argv[2];
  bool same = true;
  for (int i = 4; i < argc; ++i) {
    const Job job = directory == kNone ? seeded_job(model, argv[i])
                                       : read_job(model, argv[i], directory);
    same &= compare(job, std::stoi(argv[3]), directory);
  }
  return same ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::compare_all(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
