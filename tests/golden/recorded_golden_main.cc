// Trains like the recorded runs of Horovod and TensorFlow, and compares.
// record_horovod.py and record_tensorflow.py made the files, with two workers,
// from the numbers in them.
//
//   lockstep_recorded_golden horovod|tensorflow FILE
//
// Prints the largest difference of each case. Exit code 1 when one is above
// 1e-6, and for a case that only one side has.
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/torch/horovod.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/flat_parameters.h"

namespace lockstep {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Tensors = std::map<std::string, at::Tensor>;

constexpr int kWorkers = 2;
constexpr double kTolerance = 1e-6;

at::Tensor as_tensor(const nlohmann::json& tensor) {
  const auto shape = tensor.at("shape").get<std::vector<std::int64_t>>();
  const auto values = tensor.at("values").get<std::vector<float>>();
  return torch::tensor(values).reshape(shape);
}

Tensors as_tensors(const nlohmann::json& named) {
  Tensors tensors;
  for (const auto& [name, tensor] : named.items())
    tensors[name] = as_tensor(tensor);
  return tensors;
}

// The frameworks' inputs and results.
struct Record {
  explicit Record(const nlohmann::json& file)
      : steps(file.at("steps")),
        batch(file.at("batch")),
        learning_rate(file.at("learning_rate")),
        momentum(file.at("momentum")),
        inputs(as_tensors(file.at("inputs"))),
        outputs(as_tensors(file.at("outputs"))) {}

  // Samples [begin, begin + count) of the batch of step `step`.
  at::Tensor samples(const char* name, int step, std::int64_t begin,
                     std::int64_t count) const {
    return inputs.at(name).narrow(0, step * batch + begin, count);
  }

  int steps, batch;
  double learning_rate, momentum;
  Tensors inputs, outputs;
};

struct Net : torch::nn::Module {
  Net(const Record& record, double factor) {
    const torch::NoGradGuard no_grad;
    for (const auto& parameter : named_parameters())
      parameter.value().copy_(record.inputs.at(parameter.key()) * factor);
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(torch::tanh(first(input)));
  }
  at::Tensor without_last_bias(const at::Tensor& input) {
    return torch::nn::functional::linear(torch::tanh(first(input)),
                                         second->weight);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(3, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 2));
};

torch::optim::SGD sgd(const std::vector<at::Tensor>& parameters,
                      const Record& record, double factor) {
  return torch::optim::SGD(
      parameters, torch::optim::SGDOptions(record.learning_rate * factor)
                      .momentum(record.momentum / factor));
}

// How a Horovod case differs from the plain one.
struct HorovodCase {
  horovod::DistributedOptimizerOptions options{};
  enum class Bias { kOnAllRanks, kOnRank0 } bias = Bias::kOnAllRanks;
  enum class State { kKept, kLostOnRank1 } state = State::kKept;
};

using HorovodSGD = horovod::DistributedOptimizer<torch::optim::SGD>;

// Rank 1 has other weights, another learning rate and another momentum; rank
// 0's replace all of them.
class HorovodRun {
 public:
  HorovodRun(const Record& record, const HorovodCase& what, const Group& group)
      : record_(record),
        case_(what),
        group_(group),
        net_(record, 1 + group->rank()),
        optimizer_(sgd(net_.parameters(), record, 1 + group->rank()),
                   net_.named_parameters(), with_group(what.options, group)) {
    horovod::broadcast_parameters(net_, 0, group);
    horovod::broadcast_optimizer_state(optimizer_, 0, group);
  }

  at::Tensor train() {
    const int passes = case_.options.backward_passes_per_step;
    for (int step = 0; step < record_.steps; ++step) {
      if (step == record_.steps / 2 &&
          case_.state == HorovodCase::State::kLostOnRank1)
        lose_state();
      if (step % passes == 0) optimizer_.zero_grad();
      loss(step).backward();
      if (step % passes == passes - 1) optimizer_.step();
    }
    return flat_parameters(net_);
  }

 private:
  static horovod::DistributedOptimizerOptions with_group(
      horovod::DistributedOptimizerOptions options, const Group& group) {
    options.group = group;
    return options;
  }

  at::Tensor loss(int step) {
    const std::int64_t share = record_.batch / kWorkers;
    const std::int64_t begin = group_->rank() * share;
    const at::Tensor data = record_.samples("data", step, begin, share);
    const bool with_bias =
        case_.bias == HorovodCase::Bias::kOnAllRanks || group_->rank() == 0;
    return torch::mse_loss(
        with_bias ? net_.forward(data) : net_.without_last_bias(data),
        record_.samples("targets", step, begin, share));
  }

  void lose_state() {
    if (group_->rank() == 1) {
      for (auto& [key, state] : optimizer_.state())
        static_cast<torch::optim::SGDParamState&>(*state)
            .momentum_buffer()
            .zero_();
      optimizer_.param_groups()[0].options().set_lr(9);
    }
    horovod::broadcast_optimizer_state(optimizer_, 0, group_);
  }

  const Record& record_;
  HorovodCase case_;
  Group group_;
  Net net_;
  HorovodSGD optimizer_;
};

void add_trained(const Record& record, const Group& group, Tensors& found) {
  const std::map<std::string, HorovodCase> cases{
      {"average", {}},
      {"sum", {.options = {.op = ReduceOp::kSum}}},
      {"two passes a step", {.options = {.backward_passes_per_step = 2}}},
      {"fp16", {.options = {.compression = horovod::Compression::kFp16}}},
      {"bias used on rank 0 alone", {.bias = HorovodCase::Bias::kOnRank0}},
      {"lost state", {.state = HorovodCase::State::kLostOnRank1}}};
  for (const auto& [name, what] : cases)
    found[name] = HorovodRun(record, what, group).train();
}

void add_collectives(const Record& record, const Group& group, Tensors& found) {
  const at::Tensor mine =
      record.inputs.at("rank " + std::to_string(group->rank()) + "'s");
  const std::map<std::string, ReduceOp> ops{{"average", ReduceOp::kAverage},
                                            {"sum", ReduceOp::kSum},
                                            {"min", ReduceOp::kMin},
                                            {"max", ReduceOp::kMax},
                                            {"product", ReduceOp::kProduct}};
  for (const auto& [name, op] : ops)
    found["allreduce, " + name] = horovod::allreduce(mine, op, group);
  found["allgather"] = horovod::allgather(mine, group);
  const at::Tensor sent = mine.clone();
  broadcast(*group, sent, 1).wait();
  found["broadcast from 1"] = sent;
}

// Each worker's results.
std::vector<Tensors> as_horovod(const Record& record) {
  std::vector<Tensors> found(kWorkers);
  run_ranks("shm", kWorkers, [&](const Group& group) {
    Tensors& mine = found[static_cast<std::size_t>(group->rank())];
    add_trained(record, group, mine);
    add_collectives(record, group, mine);
  });
  return found;
}

// Samples of a global batch by replica.
struct Shares {
  const char* name;
  std::int64_t count[kWorkers];
};
constexpr Shares kShares[] = {{"", {4, 4}}, {", unequal shares", {5, 3}}};

void add_strategy(const Record& record, const std::string& name,
                  strategies::Strategy& strategy, Tensors& found) {
  for (const Shares& shares : kShares) {
    auto net = strategy.create([&](const strategies::ReplicaContext& here) {
      return std::make_shared<Net>(record, 1 + here.replica_id_in_sync_group());
    });
    auto optimizer = strategy.create_optimizer(
        net, [&](const std::vector<at::Tensor>& parameters) {
          return sgd(parameters, record, 1);
        });
    std::vector<at::Tensor> totals;
    for (int step = 0; step < record.steps; ++step) {
      const auto losses =
          strategy.run([&](const strategies::ReplicaContext& here) {
            const int replica = here.replica_id_in_sync_group();
            const std::int64_t begin = replica == 0 ? 0 : shares.count[0];
            const auto samples = [&](const char* what) {
              return record.samples(what, step, begin, shares.count[replica]);
            };
            optimizer[here].zero_grad();
            const at::Tensor errors =
                net[here](samples("data")) - samples("targets");
            const at::Tensor loss = strategy.compute_average_loss(
                errors.square().sum(1), {.global_batch_size = record.batch});
            loss.backward();
            optimizer[here].step();
            return loss.detach();
          });
      totals.push_back(strategy.reduce(ReduceOp::kSum, losses));
    }
    found[name + shares.name] = flat_parameters(*net.local());
    found[name + shares.name + ", losses"] = torch::stack(totals);
  }
}

void add_reductions(strategies::Strategy& strategy, Tensors& found) {
  const auto values = strategy.run([](const strategies::ReplicaContext& here) {
    return torch::tensor({1.0F, 10.0F}) * (1 + here.replica_id_in_sync_group());
  });
  found["reduce, sum"] = strategy.reduce(ReduceOp::kSum, values);
  found["reduce, mean"] = strategy.reduce(ReduceOp::kAverage, values);
}

std::vector<Tensors> as_tensorflow(const Record& record) {
  const std::vector<at::Device> slots(kWorkers, at::kCPU);
  Tensors of_threads;
  strategies::MirroredStrategy mirrored({.devices = slots});
  add_strategy(record, "mirrored", mirrored, of_threads);
  add_reductions(mirrored, of_threads);
  strategies::CentralStorageStrategy central({.devices = slots});
  add_strategy(record, "central", central, of_threads);
  std::vector<Tensors> found(kWorkers, of_threads);
  run_ranks("shm", kWorkers, [&](const Group& group) {
    strategies::MultiWorkerMirroredStrategy workers(group);
    add_strategy(record, "multi-worker", workers,
                 found[static_cast<std::size_t>(group->rank())]);
  });
  return found;
}

// Whether all workers match the framework.
bool compare(const std::string& name, const at::Tensor& expected,
             const std::vector<Tensors>& found) {
  double most = 0;
  for (const Tensors& worker : found) {
    const auto ours = worker.find(name);
    if (ours == worker.end())
      throw std::runtime_error("the file has a case unknown here: " + name);
    if (ours->second.sizes() != expected.sizes())
      throw std::runtime_error(name + " has another shape");
    const at::Tensor difference = (ours->second - expected).abs();
    // A NaN counts as a large difference.
    if (!difference.isfinite().all().item<bool>()) return false;
    most = std::max(most, difference.max().item<double>());
  }
  std::printf("%s: differs by at most %.2g\n", name.c_str(), most);
  return most <= kTolerance;
}

int run(const std::string& framework, const std::string& path) {
  const auto file = nlohmann::json::parse(std::ifstream(path));
  const Record record(file);
  std::printf("made by %s\n", file.at("made_by").get<std::string>().c_str());
  const std::vector<Tensors> found =
      framework == "horovod" ? as_horovod(record) : as_tensorflow(record);
  if (found[0].size() != record.outputs.size())
    throw std::runtime_error("the file lacks a case that is compared here");
  bool same = true;
  for (const auto& [name, expected] : record.outputs)
    same &= compare(name, expected, found);
  return same ? 0 : 1;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s horovod|tensorflow FILE\n", argv[0]);
    return 2;
  }
  try {
    torch::set_num_threads(1);
    return lockstep::run(argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
