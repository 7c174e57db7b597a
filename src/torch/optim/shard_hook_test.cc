// Tests with gradients of which each rank gets only its share: the same
// training, half of the bytes.
#include "src/torch/optim/shard_hook.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/comm/diagnosis/recorder.h"
#include "src/comm/group/group_core.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/optim/optimizer_shard.h"
#include "src/torch/testing/cuda_ranks.h"
#include "src/torch/testing/formula_parameters.h"
#include "src/torch/testing/parameter_bag.h"

namespace lockstep {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Model = DistributedDataParallel<Net>;
using Tensors = std::vector<at::Tensor>;

enum class Averages { kWhole, kOwn };

constexpr int kStepsOfShards = 4;
constexpr char kToOwners[] = "gradients, to their owners";
constexpr std::uint64_t kNetElements = 6 * 8 + 8 + 8 * 5 + 5 + 5 * 3 + 3;

// A model and the sharded optimizer of it.
struct Sharded {
  Sharded(const Group& group, at::Device device, Averages averages,
          const torch::optim::OptimizerOptions& rule = AdamWOptions(0.01),
          std::shared_ptr<Net> with = std::make_shared<Net>())
      : net((with->to(device), std::move(with))),
        model(net, small_buckets(group)),
        optimizer(model.parameters(), rule, {.group = group}) {
    if (averages == Averages::kOwn)
      model.register_comm_hook(optimizer.gradient_hook());
  }

  at::Tensor loss(const ProcessGroup& group, int step) {
    const Share share =
        share_of_batch(step, group.rank(), group.size(), group.size());
    const at::Device device = net->first->weight.device();
    return loss_of(model(share.input.to(device)), share.target.to(device));
  }

  std::shared_ptr<Net> net;
  Model model;
  ZeroRedundancyOptimizer optimizer;
};

// Two passes per step, of which the second is reduced; with clipping.
Tensors learn(const Group& group, at::Device device, Averages averages) {
  Sharded sharded(group, device, averages);
  for (int step = 0; step < kStepsOfShards; ++step) {
    sharded.optimizer.zero_grad(/*set_to_none=*/step % 2 == 0);
    {
      const auto local = sharded.model.no_sync();
      sharded.loss(*group, 10 + step).backward();
    }
    sharded.loss(*group, step).backward();
    sharded.optimizer.clip_grad_norm(0.1);
    sharded.optimizer.step();
  }
  return sharded.model.parameters();
}

// Those whose label begins with `label`.
std::vector<OperationRecord> labelled(std::string_view label,
                                      std::vector<OperationRecord> all) {
  std::erase_if(all, [&](const OperationRecord& operation) {
    return !operation.label.starts_with(label);
  });
  return all;
}

std::uint64_t elements_of(const std::vector<OperationRecord>& operations) {
  std::uint64_t sum = 0;
  for (const auto& operation : operations) sum += operation.signature.elements;
  return sum;
}

class ShardHookOnCuda : public CudaRanks {
 protected:
  // NCCL's order of additions differs between a reduction to one rank and to
  // all.
  void expect_alike(const Tensors& own, const Tensors& whole) const {
    if (is_fake())
      EXPECT_TRUE(are_equal(on_cpu(own), on_cpu(whole)));
    else
      EXPECT_LE(largest_difference(on_cpu(own), on_cpu(whole)), 1e-5);
  }
};

TEST(ShardHook, KnowsGroupsThatWereAddedBeforeItWasMade) {
  run_ranks(kBackend, 3, [](const Group& group) {
    Sharded whole(group, at::kCPU, Averages::kWhole);
    Model model(std::make_shared<Net>(), small_buckets(group));
    const Tensors all = model.parameters();
    ZeroRedundancyOptimizer optimizer(Tensors(all.begin(), all.begin() + 3),
                                      AdamWOptions(0.01), {.group = group});
    optimizer.add_param_group(
        torch::optim::OptimizerParamGroup(Tensors(all.begin() + 3, all.end())));
    model.register_comm_hook(optimizer.gradient_hook());
    for (int step = 0; step < kStepsOfShards; ++step) {
      whole.optimizer.zero_grad();
      optimizer.zero_grad();
      whole.loss(*group, step).backward();
      const Share share =
          share_of_batch(step, group->rank(), group->size(), group->size());
      loss_of(model(share.input), share.target).backward();
      whole.optimizer.step();
      optimizer.step();
    }
    EXPECT_LE(largest_difference(model.parameters(), whole.model.parameters()),
              kTolerance);
  });
}

TEST_F(ShardHookOnCuda, TrainsAsWithWholeAverages) {
  for (const int ranks : {1, 2, 4})
    run(ranks, [&](const Group& group) {
      const auto whole = learn(group, gpu_of(*group), Averages::kWhole);
      expect_alike(learn(group, gpu_of(*group), Averages::kOwn), whole);
      EXPECT_FALSE(are_equal(on_cpu(whole), Net().parameters()));
    });
}

TEST_F(ShardHookOnCuda, SendsEachGradientToItsOwnerAlone) {
  for (const int ranks : {2, 4})
    run(ranks, [&](const Group& group) {
      Sharded sharded(group, gpu_of(*group), Averages::kOwn);
      for (std::uint64_t pass = 1; pass <= 3; ++pass) {
        sharded.optimizer.zero_grad();
        sharded.loss(*group, 0).backward();
        const auto sent = labelled(kToOwners, operations(*group));
        EXPECT_EQ(elements_of(sent), pass * kNetElements);
        for (const auto& operation : sent)
          EXPECT_EQ(operation.signature.kind,
                    static_cast<std::uint8_t>(OperationKind::kReduceScatter));
        EXPECT_THAT(labelled("gradients, bucket", operations(*group)),
                    IsEmpty());
        EXPECT_THAT(labelled("gradients, by a hook", operations(*group)),
                    IsEmpty());
        // Each rank has the whole average of what it owns.
        const auto average = gradients_of_one_process(ranks);
        for (const auto& piece : sharded.optimizer.shard().pieces())
          EXPECT_LE(
              largest_difference(
                  {OptimizerShard::part_of(
                       gradients_of(*sharded.net)[piece.parameter], piece)
                       .cpu()},
                  {OptimizerShard::part_of(average[piece.parameter], piece)}),
              kTolerance);
      }
    });
}

TEST_F(ShardHookOnCuda, TellsTheNormOfAllGradientsAndClipsByIt) {
  run(3, [](const Group& group) {
    Sharded sharded(group, gpu_of(*group), Averages::kOwn, SGDOptions(1));
    sharded.loss(*group, 0).backward();
    double squares = 0;
    for (const at::Tensor& gradient : gradients_of_one_process(3))
      squares += gradient.square().sum().item<double>();
    const double norm = std::sqrt(squares);
    EXPECT_NEAR(sharded.optimizer.clip_grad_norm(norm / 2), norm, 1e-5);
    const auto before = copies_of(sharded.model.parameters());
    sharded.optimizer.step();
    double moved = 0;
    for (std::size_t i = 0; i < before.size(); ++i)
      moved += (before[i] - sharded.model.parameters()[i])
                   .square()
                   .sum()
                   .item<double>();
    EXPECT_NEAR(std::sqrt(moved), norm / 2, 1e-5);
  });
}

// Whether the owner of an element overflows, or another rank.
TEST_F(ShardHookOnCuda, LeavesAStepOutOnAllRanksWhenOneOverflows) {
  for (const int bad_rank : {0, 1})
    for (const bool first : {true, false})
      run(2, [&](const Group& group) {
        Sharded sharded(group, gpu_of(*group), Averages::kOwn);
        GradientScaler scaler({.group = group, .init_scale = 8});
        const auto before = copies_of(sharded.model.parameters());
        // The first element is rank 0's, the last rank 1's.
        const at::Tensor& parameter =
            first ? sharded.net->first->weight : sharded.net->third->bias;
        at::Tensor loss = scaler.scale(sharded.loss(*group, 0));
        if (group->rank() == bad_rank) loss = loss + (parameter / 0.0).sum();
        loss.backward();
        EXPECT_FALSE(scaler.step(sharded.optimizer)) << group->rank();
        scaler.update();
        EXPECT_EQ(scaler.get_scale(), 4);
        expect_alike(sharded.model.parameters(), before);
        sharded.optimizer.zero_grad();
        scaler.scale(sharded.loss(*group, 0)).backward();
        EXPECT_TRUE(scaler.step(sharded.optimizer));
        EXPECT_FALSE(
            are_equal(on_cpu(sharded.model.parameters()), on_cpu(before)));
      });
}

TEST_F(ShardHookOnCuda, IsWhatCompressedGradientsCanBeReducedBy) {
  run(2, [&](const Group& group) {
    Sharded plain(group, gpu_of(*group), Averages::kWhole, SGDOptions(0.1));
    Sharded sharded(group, gpu_of(*group), Averages::kWhole, SGDOptions(0.1));
    sharded.model.register_comm_hook(
        bf16_compress_wrapper(sharded.optimizer.gradient_hook()));
    for (Sharded* one : {&plain, &sharded}) {
      one->loss(*group, 0).backward();
      one->optimizer.step();
    }
    const auto sent = labelled(kToOwners, operations(*group));
    EXPECT_EQ(elements_of(sent), kNetElements);
    for (const auto& operation : sent)
      EXPECT_EQ(operation.signature.type,
                static_cast<std::uint8_t>(DataType::kBFloat16));
    EXPECT_LE(largest_difference(on_cpu(sharded.model.parameters()),
                                 on_cpu(plain.model.parameters())),
              1e-3);
  });
}

// On the CPU the hook is meant for several hosts; here it tests, to the bit,
// what does not depend on a device.
struct ShardSetting {
  const char* backend;
  int ranks;
};
class ShardHookRanks : public testing::TestWithParam<ShardSetting> {};
INSTANTIATE_TEST_SUITE_P(
    ShardHook, ShardHookRanks,
    testing::Values(ShardSetting{"shm", 1}, ShardSetting{"shm", 2},
                    ShardSetting{"shm", 3}, ShardSetting{"shm", 4},
                    ShardSetting{"reference", 3}),
    [](const auto& setting) {
      return setting.param.backend + std::to_string(setting.param.ranks);
    });

TEST_P(ShardHookRanks, TrainAsWithWholeAverages) {
  run_ranks(GetParam().backend, GetParam().ranks, [](const Group& group) {
    const auto whole = learn(group, at::kCPU, Averages::kWhole);
    EXPECT_TRUE(are_equal(learn(group, at::kCPU, Averages::kOwn), whole));
  });
}

// Shapes: empty, one number, channels-last, and larger than all others
// together.
TEST_P(ShardHookRanks, CutGradientsOfAnyShapeAsTheOptimizerDoes) {
  struct Formula : torch::nn::Module {
    Formula() {
      const auto parameters = formula_parameters();
      for (std::size_t i = 0; i < parameters.size(); ++i)
        register_parameter(std::to_string(i), parameters[i]);
    }
    at::Tensor forward(double phase) {
      at::Tensor sum = torch::zeros({});
      for (const at::Tensor& parameter : parameters())
        sum = sum + (parameter * wave(parameter.sizes(), ++phase)).sum();
      return sum;
    }
  };
  run_ranks(GetParam().backend, GetParam().ranks, [](const Group& group) {
    const auto learned = [&](Averages averages) {
      auto model = DistributedDataParallel(
          std::make_shared<Formula>(),
          {.group = group, .first_bucket_bytes = 64, .bucket_bytes = 400});
      ZeroRedundancyOptimizer optimizer(model.parameters(), AdamWOptions(0.1),
                                        {.group = group});
      if (averages == Averages::kOwn)
        model.register_comm_hook(optimizer.gradient_hook());
      for (int step = 0; step < kStepsOfShards; ++step) {
        optimizer.zero_grad();
        model(10 * step + group->rank()).backward();
        optimizer.step();
      }
      return model.parameters();
    };
    EXPECT_TRUE(are_equal(learned(Averages::kOwn), learned(Averages::kWhole)));
  });
}

TEST(ShardHook, LeavesToTheOptionsWhatAPassDoesNotUse) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const auto learned = [&](Averages averages) {
      auto model = DistributedDataParallel(
          std::make_shared<ParameterBag>(),
          {.group = group, .bucket_bytes = 0, .find_unused_parameters = true});
      ZeroRedundancyOptimizer optimizer(model.parameters(),
                                        SGDOptions(0.1).weight_decay(0.1),
                                        {.group = group});
      if (averages == Averages::kOwn)
        model.register_comm_hook(optimizer.gradient_hook());
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        model(group->rank() == 1 ? "cb" : "c", step + 1).backward();
        optimizer.step();
      }
      return model.parameters();
    };
    const auto own = learned(Averages::kOwn);
    EXPECT_TRUE(are_equal(own, learned(Averages::kWhole)));
    EXPECT_TRUE(own[0].equal(ParameterBag().parameters()[0]));
  });
}

TEST(ShardHook, AveragesWholeWhatTheOptimizerDoesNotHave) {
  run_ranks(kBackend, 3, [](const Group& group) {
    Model model(std::make_shared<Net>(), small_buckets(group));
    ZeroRedundancyOptimizer optimizer(model->second->parameters(),
                                      SGDOptions(0.1), {.group = group});
    model.register_comm_hook(optimizer.gradient_hook());
    const auto expected = gradients_of_one_process(3);
    for (int pass = 0; pass < 2; ++pass) {
      model.zero_grad();
      backward(model, *group);
      const auto gradients = gradients_of(*model);
      for (const std::size_t others : {0, 1, 4, 5})
        EXPECT_LE(largest_difference({gradients[others]}, {expected[others]}),
                  kTolerance);
    }
  });
}

TEST(ShardHook, IsRefusedWhereGradientsAreNotReducedForThisOptimizer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Model model(std::make_shared<Net>(), {.group = group});
    const ZeroRedundancyOptimizer averaging(
        model.parameters(), SGDOptions(0.1),
        {.group = group, .averages_gradients = true});
    EXPECT_THAT(message_of([&] { averaging.gradient_hook(); }),
                AllOf(HasSubstr("averages gradients in step()"),
                      HasSubstr("leave averages_gradients at false")));
    const std::vector<int> exchanged{1, 0};
    const auto other = new_group(*group, exchanged);
    const ZeroRedundancyOptimizer elsewhere(model.parameters(), SGDOptions(0.1),
                                            {.group = other});
    model.register_comm_hook(elsewhere.gradient_hook());
    EXPECT_THAT(message_of([&] { backward(model, *group); }),
                HasSubstr("the same group"));
  });
}

TEST(ShardHook, RefusesToAddToWhatIsReducedInPart) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Sharded sharded(group, at::kCPU, Averages::kOwn);
    const auto pass = [&](int step) { sharded.loss(*group, step).backward(); };
    pass(0);
    EXPECT_THAT(message_of([&] { pass(1); }),
                AllOf(HasSubstr("the pass would add to the gradient of"),
                      HasSubstr("within no_sync()")));
    {
      const auto local = sharded.model.no_sync();
      EXPECT_ANY_THROW(pass(1));
    }
    for (const bool set_to_none : {false, true}) {
      sharded.optimizer.zero_grad(set_to_none);
      {
        const auto local = sharded.model.no_sync();
        EXPECT_NO_THROW(pass(2));
      }
      EXPECT_NO_THROW(pass(3));
    }
  });
}

TEST(ShardHook, LetsPassesUseOneGradientEach) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag("abc");
    auto parameters = bag.parameters();
    // The optimizer has a and b; c is averaged whole.
    ZeroRedundancyOptimizer optimizer({parameters[0], parameters[1]},
                                      SGDOptions(0.1), {.group = group});
    DistributedDataParallel<ParameterBag> model(
        std::make_shared<ParameterBag>(bag),
        {.group = group, .find_unused_parameters = true});
    model.register_comm_hook(optimizer.gradient_hook());
    model("ac", 1).backward();
    EXPECT_NO_THROW(model("bc", 1).backward());
    EXPECT_THAT(message_of([&] { model("ca", 1).backward(); }),
                HasSubstr("add to the gradient of"));
  });
}

TEST(ShardHook, OutlivesTheOptimizer) {
  run_ranks(kBackend, 2, [](const Group& group) {
    Model model(std::make_shared<Net>(), small_buckets(group));
    {
      const ZeroRedundancyOptimizer optimizer(
          model.parameters(), SGDOptions(0.1), {.group = group});
      model.register_comm_hook(optimizer.gradient_hook());
    }
    backward(model, *group);
    EXPECT_THAT(
        labelled(kToOwners,
                 group->core().world()->recorder()->snapshot("").operations),
        Not(IsEmpty()));
  });
}

}  // namespace
}  // namespace lockstep
