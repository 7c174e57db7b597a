#include "src/checkpoint/optimizer_tensors.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <functional>
#include <sstream>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/base/testing/error_text.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Parameters = std::vector<at::Tensor>;
using MadeOf = std::function<std::unique_ptr<torch::optim::Optimizer>(
    const std::vector<torch::optim::OptimizerParamGroup>&)>;

// Two layers; the second is a separate group with another rate.
struct Trained {
  explicit Trained(const MadeOf& make)
      : net(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)) {
    const at::NoGradGuard no_grad;
    double value = 0;
    for (at::Tensor& parameter : net->parameters())
      parameter.copy_(at::arange(parameter.numel()).view(parameter.sizes()) *
                          0.01 +
                      (value += 0.1));
    const auto parameters = net->parameters();
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(Parameters(parameters.begin(), parameters.end() - 2));
    groups.emplace_back(Parameters(parameters.end() - 2, parameters.end()));
    optimizer = make(groups);
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i)
      optimizer->step([&] {
        optimizer->zero_grad();
        const at::Tensor loss =
            net->forward(at::ones({2, 3})).square().sum() / 10;
        loss.backward();
        return loss;
      });
  }

  torch::nn::Sequential net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

template <class Optimizer, class Options>
MadeOf with(const Options& options) {
  return [=](const auto& groups) {
    auto optimizer = std::make_unique<Optimizer>(groups, options);
    if (groups.size() > 1) optimizer->param_groups()[1].options().set_lr(0.003);
    return optimizer;
  };
}

struct Named {
  const char* kind;
  MadeOf make;
};

std::vector<Named> all_kinds() {
  namespace optim = torch::optim;
  const auto sgd = optim::SGDOptions(0.01).momentum(0.9).nesterov(true);
  const auto amsgrad = optim::AdamOptions(0.01).amsgrad(true);
  const auto rmsprop = optim::RMSpropOptions(0.01).momentum(0.9).centered(true);
  return {{"sgd", with<optim::SGD>(sgd)},
          {"sgd", with<optim::SGD>(optim::SGDOptions(0.01))},
          {"sgd", with<FusedSGD>(sgd)},
          {"adam", with<optim::Adam>(amsgrad)},
          {"adam", with<FusedAdam>(optim::AdamOptions(0.01))},
          {"adamw", with<optim::AdamW>(optim::AdamWOptions(0.01))},
          {"adamw", with<FusedAdamW>(optim::AdamWOptions(0.01))},
          {"adagrad", with<optim::Adagrad>(optim::AdagradOptions(0.01))},
          {"rmsprop", with<optim::RMSprop>(rmsprop)}};
}

bool same_weights(const Trained& a, const Trained& b) {
  const auto left = a.net->parameters(), right = b.net->parameters();
  for (std::size_t i = 0; i < left.size(); ++i)
    if (!at::equal(left[i], right[i])) return false;
  return true;
}

// Continues training in `resumed` from the state of `saved`, and compares.
void expect_same_future(Trained& saved, Trained& resumed, const char* kind) {
  const OptimizerTensors stored = tensors_of(*saved.optimizer, *saved.net);
  EXPECT_EQ(stored.kind, kind);
  load_optimizer(stored, *resumed.net, *resumed.optimizer);
  copy_over(tensors_of(*resumed.net), tensors_of(*saved.net));
  resumed.train(3);
  saved.train(3);
  EXPECT_TRUE(same_weights(saved, resumed)) << kind;
}

TEST(OptimizerTensors, LetEveryKindGoOnBitForBit) {
  int number = 0;
  for (const Named& kind : all_kinds()) {
    SCOPED_TRACE(number++);
    for (const int steps : {0, 1, 4}) {
      Trained saved(kind.make), resumed(kind.make);
      saved.train(steps);
      saved.optimizer->param_groups()[0].options().set_lr(0.02);
      resumed.train(2);  // leaves nothing behind
      expect_same_future(saved, resumed, kind.kind);
    }
  }
}

// A user's own optimizer, whose steps become shorter.
class Shortening : public torch::optim::Optimizer {
 public:
  explicit Shortening(std::vector<at::Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {
    state_[this] = std::make_unique<torch::optim::LBFGSParamState>();
  }
  at::Tensor step(LossClosure closure) override {
    const at::Tensor loss = closure();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups_[0].params())
      parameter.sub_(parameter.grad() * length_);
    length_.mul_(0.9);
    return loss;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("length", length_);
  }
  void load(torch::serialize::InputArchive& archive) override {
    archive.read("length", length_);
  }

 private:
  at::Tensor length_ = at::ones({}) * 0.1;
};

TEST(OptimizerTensors, OfAnUnknownKindAreLibTorchsArchive) {
  const MadeOf make = [](const auto& groups) {
    return std::make_unique<Shortening>(groups[0].params());
  };
  Trained saved(make), resumed(make);
  saved.train(2);
  expect_same_future(saved, resumed, "archive");
}

// After its first step some of its tensors are undefined.
TEST(OptimizerTensors, ThatLibTorchCannotSaveAreRefused) {
  torch::nn::Linear net(2, 1);
  torch::optim::LBFGS optimizer(net->parameters());
  optimizer.step([&] {
    optimizer.zero_grad();
    const at::Tensor loss = net->forward(at::ones({1, 2})).square().sum();
    loss.backward();
    return loss;
  });
  EXPECT_THAT(error_text([&] { tensors_of(optimizer, *net); }),
              HasSubstr("LibTorch cannot save the state of this optimizer"));
}

TEST(OptimizerTensors, HaveTheParametersNames) {
  Trained run(with<FusedSGD>(torch::optim::SGDOptions(0.01).momentum(0.9)));
  run.train(1);
  const OptimizerTensors stored = tensors_of(*run.optimizer, *run.net);
  EXPECT_TRUE(stored.tensors.contains("state.1.bias.momentum_buffer"));
  EXPECT_EQ(stored.tensors.at("group.1.lr").item<double>(), 0.003);
}

// A parameter of the model that has the name of a place in the optimizer.
struct Numbered : torch::nn::Module {
  Numbered() {
    const auto list = std::make_shared<Module>();
    weight = list->register_parameter("1", at::ones({2}));
    deeper = list->register_module("0", std::make_shared<Module>())
                 ->register_parameter("w", at::ones({3}));
    register_module("0", list);
  }
  at::Tensor weight, deeper;
};

TEST(OptimizerTensors, OfTwoParametersNeverHaveOneName) {
  const Numbered net;
  const at::Tensor other = at::ones({2}).requires_grad_();
  const auto trained = [&](const Parameters& parameters) {
    auto optimizer = std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    double value = 0;
    for (const at::Tensor& tensor : parameters)
      (tensor * (value += 1)).sum().backward();
    optimizer->step();
    return optimizer;
  };
  // `other` is in the place 0.1.
  const auto refused = trained({net.weight, other});
  EXPECT_THAT(error_text([&] { tensors_of(*refused, net); }),
              HasSubstr("would have the name \"0.1\""));
  // In the place 0.0, where the module has no parameter, but others below.
  const auto optimizer = trained({other, net.weight, net.deeper});
  const OptimizerTensors stored = tensors_of(*optimizer, net);
  load_optimizer(stored, net, *optimizer);
  for (const auto& [name, tensor] : tensors_of(*optimizer, net).tensors)
    EXPECT_TRUE(tensor.equal(stored.tensors.at(name))) << name;
}

TEST(OptimizerTensors, OfAShardedOptimizerLoadAtAnyNumberOfRanks) {
  const auto rule = torch::optim::AdamWOptions(0.01);
  Trained whole(with<FusedAdamW>(rule));
  whole.train(2);
  const OptimizerTensors stored = tensors_of(*whole.optimizer, *whole.net);
  for (const int ranks : {1, 2, 3})
    run_ranks("shm", ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Trained sharded([&](const auto& groups) {
        return std::make_unique<ZeroRedundancyOptimizer>(
            groups, rule, ZeroRedundancyOptimizerOptions{.group = group});
      });
      load_optimizer(stored, *sharded.net, *sharded.optimizer);
      consolidate_if_sharded(*sharded.optimizer);
      if (group->rank() != 0) return;
      const auto again = tensors_of(*sharded.optimizer, *sharded.net);
      EXPECT_EQ(again.kind, stored.kind);
      EXPECT_EQ(differences(stored.tensors, again.tensors), "");
      for (const auto& [name, tensor] : stored.tensors)
        EXPECT_TRUE(at::equal(tensor, again.tensors.at(name))) << name;
    });
}

TEST(OptimizerTensors, ThatDoNotFitAreRefusedAndChangeNothing) {
  const auto momentum = torch::optim::SGDOptions(0.01).momentum(0.9);
  Trained run(with<FusedSGD>(momentum)), other(with<FusedSGD>(momentum));
  run.train(1);
  other.train(3);
  const auto refusal = [&](auto change) {
    OptimizerTensors stored = tensors_of(*other.optimizer, *other.net);
    stored.tensors["group.0.lr"] = at::scalar_tensor(7.0, at::kDouble);
    change(stored);
    const std::string text =
        error_text([&] { load_optimizer(stored, *run.net, *run.optimizer); });
    EXPECT_EQ(run.optimizer->param_groups()[0].options().get_lr(), 0.01);
    return text;
  };
  EXPECT_THAT(refusal([](auto& stored) { stored.kind = "adam"; }),
              HasSubstr("of kind adam, and the optimizer of kind sgd"));
  EXPECT_THAT(refusal([](auto& stored) {
                stored.tensors["state.1.bias.momentum_buffer"] = at::ones({3});
              }),
              HasSubstr("1.bias.momentum_buffer has another shape"));
  EXPECT_THAT(refusal([](auto& stored) { stored.tensors.erase("group.1.lr"); }),
              HasSubstr("group.1.lr is missing"));
  EXPECT_THAT(refusal([](auto& stored) {
                stored.tensors["state.2.bias.momentum_buffer"] = at::ones({2});
              }),
              HasSubstr("state of parameters that the optimizer does not"));
  EXPECT_THAT(refusal([](auto& stored) {
                stored.tensors["group.2.lr"] = at::ones({}, at::kDouble);
              }),
              HasSubstr("more groups"));
}

TEST(OptimizerTensors, OfOptionsThatOurKernelsLackAreRefusedByThem) {
  namespace optim = torch::optim;
  Trained theirs(with<optim::Adam>(optim::AdamOptions(0.02).amsgrad(true)));
  theirs.train(1);
  const OptimizerTensors stored = tensors_of(*theirs.optimizer, *theirs.net);
  const auto expect_refusal = [&](Trained& ours) {
    EXPECT_THAT(
        error_text([&] { load_optimizer(stored, *ours.net, *ours.optimizer); }),
        HasSubstr("do not support amsgrad"));
    EXPECT_EQ(ours.optimizer->param_groups()[0].options().get_lr(), 0.01);
    EXPECT_NO_THROW(ours.train(1));
  };
  Trained fused(with<FusedAdam>(optim::AdamOptions(0.01)));
  expect_refusal(fused);
  run_ranks("shm", 2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Trained sharded([&](const auto& groups) {
      return std::make_unique<ZeroRedundancyOptimizer>(
          groups, optim::AdamOptions(0.01),
          ZeroRedundancyOptimizerOptions{.group = group});
    });
    expect_refusal(sharded);
  });
}

TEST(ModuleCpuCopy, HasTheModulesTensorsAndIsSavedAsItIs) {
  torch::nn::Linear shared(2, 2);
  torch::nn::Sequential net(torch::nn::Linear(2, 2), shared);
  net->register_parameter("tied", shared->weight);
  net->register_buffer("count", at::ones({}, at::kLong));
  const auto copy = module_cpu_copy(*net);
  const NamedTensors before = tensors_of(*net);
  EXPECT_EQ(differences(before, tensors_of(*copy)), "");
  EXPECT_TRUE(copy->named_parameters()["tied"].is_same(
      copy->named_parameters()["1.weight"]));
  std::stringstream of_module, of_copy;
  torch::save(net, of_module);
  torch::serialize::OutputArchive archive;
  copy->save(archive);
  archive.save_to(of_copy);
  {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.zero_();
  }
  EXPECT_NE(copy->named_parameters()["0.bias"].abs().sum().item<double>(), 0);
  torch::load(net, of_copy);
  EXPECT_TRUE(at::equal(net->parameters()[0], copy->parameters()[0]));
  EXPECT_EQ(of_copy.str().size(), of_module.str().size());
}

}  // namespace
}  // namespace lockstep
