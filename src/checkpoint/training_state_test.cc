// Tests of restoring a state: completely on every rank, or not at all.
#include "src/checkpoint/training_state.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/optimizers.h"
#include "src/base/testing/error_text.h"
#include "src/comm/testing/run_ranks.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Group = std::shared_ptr<ProcessGroup>;

// A run whose numbers are `value`; each rank also has some of its own.
struct Small {
  Small(const Group& group, double value)
      : net(2, 2),
        optimizer(net->parameters(), torch::optim::SGDOptions(value)),
        scaler({.group = group, .init_scale = value}),
        generator(default_cpu_generator().clone()),
        own(at::full({2}, value + group->rank())),
        step(static_cast<std::int64_t>(value)) {
    generator.set_current_seed(static_cast<std::uint64_t>(step) +
                               static_cast<std::uint64_t>(group->rank()));
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(value);
  }

  TrainingState state() {
    return {.model = net.ptr(),
            .optimizer = &optimizer,
            .scaler = &scaler,
            .counters = {{"step", &step}},
            .generators = {{"numbers", generator}},
            .own = {{"own", own}}};
  }

  // The whole state, as text.
  std::string bits() {
    std::string text =
        std::to_string(step) + " " + std::to_string(scaler.get_scale()) + " " +
        std::to_string(optimizer.param_groups()[0].options().get_lr());
    for (const at::Tensor& tensor :
         {net->weight, net->bias, own, generator.get_state()})
      text.append(static_cast<const char*>(tensor.const_data_ptr()),
                  tensor.nbytes());
    return text;
  }

  torch::nn::Linear net;
  FusedSGD optimizer;
  GradientScaler scaler;
  at::Generator generator;
  at::Tensor own;
  std::int64_t step;
};

// The checkpoint of this many ranks whose numbers are 8.
TensorArchive saved_by(int ranks) {
  TensorArchive checkpoint;
  run_ranks("shm", ranks, [&](const Group& group) {
    at::set_num_threads(1);
    Small run(group, 8);
    collect(run.state(), *group, [&](TensorArchive archive) {
      for (auto& [name, tensor] : archive.tensors) tensor = tensor.clone();
      checkpoint = std::move(archive);
    });
  });
  return checkpoint;
}

// The error on one rank, whose state must be unchanged.
std::string refusal_of_checkpoint(const TensorArchive& checkpoint) {
  std::string text;
  run_ranks("shm", 1, [&](const Group& group) {
    Small run(group, 4);
    const std::string before = run.bits();
    text = error_text(
        [&] { restore(run.state(), checkpoint, *group, "the file"); });
    if (text != "no error") {
      EXPECT_EQ(run.bits(), before) << text;
    }
  });
  return text;
}

TEST(Collecting, GivesAllRanksTheBuffersThatAreSaved) {
  run_ranks("shm", 3, [](const Group& group) {
    const torch::nn::BatchNorm1d norm(2);
    norm->running_mean.fill_(group->rank() + 5);
    norm->num_batches_tracked.fill_(group->rank() + 7);
    collect({.model = norm.ptr()}, *group, [](const TensorArchive& archive) {
      EXPECT_EQ(archive.tensors.at("model.running_mean")[0].item<int>(), 5);
    });
    EXPECT_EQ(norm->running_mean[1].item<int>(), 5);
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 7);
  });
}

TEST(Collecting, LeavesBuffersAloneWhereARankHasNoModelOfItsOwn) {
  run_ranks("shm", 2, [](const Group& group) {
    const torch::nn::BatchNorm1d norm(2);
    const bool has = group->rank() == 0;
    EXPECT_NO_THROW(collect({.model = has ? norm.ptr() : nullptr}, *group,
                            [](const TensorArchive&) {}));
    EXPECT_NO_THROW(group->barrier().wait());
  });
}

// What every rank says to a state that rank 1 alone has wrong.
TEST(Collecting, RefusesOnEveryRankWhatCouldNotBeRestored) {
  struct Case {
    const char* problem;
    std::function<void(TrainingState&)> spoil;
  };
  torch::nn::BatchNorm1d sparse(2);
  sparse->register_buffer("mask", at::eye(2).to_sparse());
  for (const auto& [problem, spoil] : std::vector<Case>{
           {"the counter \"none\" is a null pointer",
            [](auto& state) { state.counters["none"] = nullptr; }},
           {"the generator \"none\" is undefined",
            [](auto& state) { state.generators["none"] = at::Generator(); }},
           {"\"mask\" cannot be saved: it is sparse",
            [&](auto& state) { state.model = sparse.ptr(); }},
           {"\"loss\" cannot be saved: it is undefined",
            [](auto& state) { state.own["loss"] = at::Tensor(); }},
           {"different tensors to save",
            [](auto& state) { state.own["own"] = at::zeros({3}); }}})
    run_ranks("shm", 2, [&](const Group& group) {
      Small run(group, 8);
      TrainingState state = run.state();
      if (group->rank() == 1) spoil(state);
      SafetensorsMetadata texts;
      EXPECT_THAT(error_text<Error>([&] {
                    collect(state, *group, [](const TensorArchive&) {});
                  }),
                  HasSubstr(problem));
      EXPECT_THAT(
          error_text<Error>([&] { collect_pieces(state, *group, texts); }),
          HasSubstr(problem));
      EXPECT_NO_THROW(collect(run.state(), *group, [](const auto&) {}));
    });
}

TEST(Collecting, RefusesAnOptimizerWithoutTheModelThatNamesItsParameters) {
  run_ranks("shm", 1, [&](const Group& group) {
    Small run(group, 8);
    TrainingState state = run.state();
    state.model = nullptr;
    EXPECT_THAT(error_text([&] { collect(state, *group, [](const auto&) {}); }),
                HasSubstr("set TrainingState::model"));
  });
}

// A parameter's memory was replaced after the optimizer had made its state.
TEST(Collecting, RefusesStateThatWouldNotFitItsParameter) {
  run_ranks("shm", 1, [](const Group& group) {
    torch::nn::Linear net(2, 2);
    torch::optim::SGD optimizer(net->parameters(),
                                torch::optim::SGDOptions(1).momentum(0.5));
    net->forward(at::ones({2})).sum().backward();
    optimizer.step();
    const TrainingState state{.model = net.ptr(), .optimizer = &optimizer};
    EXPECT_NO_THROW(collect(state, *group, [](const auto&) {}));
    net->weight.set_data(at::zeros({3, 2}));
    bool kept = false;
    EXPECT_THAT(error_text([&] {
                  collect(state, *group, [&](const auto&) { kept = true; });
                }),
                AllOf(HasSubstr("cannot be saved"),
                      HasSubstr("has another shape than its parameter")));
    EXPECT_FALSE(kept);
  });
}

struct Expanded : torch::nn::Module {
  explicit Expanded(std::int64_t value) {
    grid = register_buffer("grid", at::full({3}, value).expand({2, 3}));
  }
  at::Tensor grid;
};

TEST(Collecting, TakesAnExpandedBufferThatRestoringFillsAgain) {
  for (const int ranks : {1, 2}) {
    TensorArchive checkpoint;
    run_ranks("shm", ranks, [&](const Group& group) {
      const auto net = std::make_shared<Expanded>(7 + group->rank());
      collect({.model = net}, *group, [&](TensorArchive archive) {
        for (auto& [name, tensor] : archive.tensors)
          tensor = storable(name, tensor).clone();
        checkpoint = std::move(archive);
      });
      EXPECT_EQ(net->grid[1][2].item<int>(), 7);
    });
    run_ranks("shm", ranks, [&](const Group& group) {
      const auto net = std::make_shared<Expanded>(4);
      restore({.model = net}, checkpoint, *group, "the file");
      EXPECT_TRUE(net->grid.equal(at::full({2, 3}, 7)));
    });
  }
}

TEST(Restoring, ChangesNothingOnAnyRankUnlessItFitsOnAll) {
  const TensorArchive checkpoint = saved_by(2);
  run_ranks("shm", 2, [&](const Group& group) {
    Small run(group, 4);
    const std::string before = run.bits();
    TrainingState state = run.state();
    if (group->rank() == 1) state.counters["more"] = &run.step;
    const std::string text = error_text<Error>(
        [&] { restore(state, checkpoint, *group, "the file"); });
    EXPECT_THAT(text, HasSubstr("lacks \"counter.more\""));
    if (group->rank() == 0) {
      EXPECT_THAT(text, HasSubstr("loading a checkpoint failed on rank 1"));
    }
    EXPECT_EQ(run.bits(), before) << group->rank();
    restore(run.state(), checkpoint, *group, "the file");  // which still works
    EXPECT_EQ(run.bits(), Small(group, 8).bits());
  });
}

TEST(Restoring, LooksAtWhatEachRankHadOnAllRanksWhateverTheirNumber) {
  const TensorArchive checkpoint = saved_by(2);
  for (const int ranks : {1, 2, 3})
    run_ranks("shm", ranks, [&](const Group& group) {
      Small run(group, 4);
      const std::string before = run.bits();
      TrainingState state = run.state();
      state.own["more"] = at::zeros({2});
      EXPECT_THAT(
          error_text([&] { restore(state, checkpoint, *group, "the file"); }),
          HasSubstr("lacks \"rank."))
          << group->rank();
      state = run.state();
      state.own["own"] = at::zeros({3});
      EXPECT_THAT(
          error_text([&] { restore(state, checkpoint, *group, "the file"); }),
          HasSubstr("own.own\" of another size or type"))
          << group->rank();
      EXPECT_EQ(run.bits(), before) << group->rank();
    });
}

TEST(Restoring, RefusesWhatGeneratorAndScalerCannotTakeUnchanged) {
  const TensorArchive whole = saved_by(1);
  const auto refusal = [&](const std::string& name, const at::Tensor& tensor) {
    TensorArchive checkpoint = whole;
    checkpoint.tensors[name] = tensor;
    return refusal_of_checkpoint(checkpoint);
  };
  const std::string generator = "rank.0.generator.numbers";
  const at::Tensor state = whole.tensors.at(generator);
  const auto not_taken =
      HasSubstr("invalid state of the generator \"numbers\"");
  EXPECT_THAT(refusal(generator, state.narrow(0, 0, 9)), not_taken);
  EXPECT_THAT(refusal(generator, state.to(at::kFloat)), not_taken);
  EXPECT_THAT(refusal(generator, at::full_like(state, 255)), not_taken);
  for (const double scale : {0.0, -1.0, std::nan(""), HUGE_VAL})
    EXPECT_THAT(refusal("scaler.scale", at::scalar_tensor(scale, at::kDouble)),
                AllOf(HasSubstr("the checkpoint \"the file\""),
                      HasSubstr("cannot have a scale")))
        << scale;
  EXPECT_THAT(refusal("scaler.scale", at::ones({})),
              HasSubstr("\"scaler.scale\" of another size or type"));
  for (const std::int64_t steps : {std::int64_t{-1}, std::int64_t{1} << 32})
    EXPECT_THAT(
        refusal("scaler.growth_tracker", at::scalar_tensor(steps, at::kLong)),
        HasSubstr("the checkpoint \"the file\""))
        << steps;
  EXPECT_EQ(refusal(generator, state), "no error");
}

TEST(Restoring, RefusesANumberOfRanksThatIsNone) {
  TensorArchive checkpoint = saved_by(1);
  for (const char* number :
       {"0", "-1", "x", "", "1x", " 1", "1.0", "99999999999999999999"}) {
    checkpoint.metadata["lockstep.ranks"] = number;
    EXPECT_THAT(refusal_of_checkpoint(checkpoint),
                AllOf(HasSubstr("the checkpoint \"the file\" claims that \"" +
                                std::string(number) + "\" ranks saved it"),
                      HasSubstr("next:")));
  }
}

}  // namespace
}  // namespace lockstep
