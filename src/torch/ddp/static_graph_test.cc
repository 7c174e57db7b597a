// Tests of static_graph, and of parts of the graph that run backward() inside
// backward().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/checkpoint.h"
#include "src/torch/testing/parameter_bag.h"
#include "src/torch/testing/recording_group.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsNan;

constexpr ReducerOptions kStatic{
    .first_bucket_bytes = 0, .bucket_bytes = 0, .static_graph = true};

// Layers in nested checkpoints, and one outside.
struct Checkpointed : torch::nn::Module {
  enum class Shape { kEachLayerOnce, kAllInside, kNested, kShared };

  explicit Checkpointed(Shape shape_of_graph) : shape(shape_of_graph) {
    inner = register_module("inner", torch::nn::Linear(6, 6));
    outer = register_module("outer", torch::nn::Linear(6, 6));
    head = register_module("head", torch::nn::Linear(6, 3));
    fill(*this, 0);
  }

  at::Tensor forward(const at::Tensor& batch) {
    const at::Tensor input = batch.detach().clone().requires_grad_();
    switch (shape) {
      case Shape::kEachLayerOnce:
        return head(checkpoint(with_outer, checkpoint(with_inner, input)));
      case Shape::kAllInside:
        return checkpoint(
            with_head, checkpoint(with_outer, checkpoint(with_inner, input)));
      case Shape::kNested:
        return checkpoint(nested, input);
      case Shape::kShared:
        return head(inner(
            checkpoint(with_inner, checkpoint(with_inner, outer(input)))));
    }
    return {};
  }

  Shape shape;
  torch::nn::Linear inner{nullptr}, outer{nullptr}, head{nullptr};
  Body with_inner = [this](const at::Tensor& x) {
    return torch::tanh(inner(x));
  };
  Body with_outer = [this](const at::Tensor& x) {
    return torch::tanh(outer(x));
  };
  Body with_head = [this](const at::Tensor& x) { return head(x); };
  Body nested = [this](const at::Tensor& x) {
    return head(outer(checkpoint(with_inner, x)));
  };
};
using Shape = Checkpointed::Shape;

std::vector<at::Tensor> expected_gradients(Shape shape, int ranks, int step) {
  Checkpointed model(shape);
  const Share batch = share_of_batch(step, 0, 1, ranks);
  loss_of(model.forward(batch.input), batch.target).backward();
  return gradients_of(model);
}

void expect_averages(Shape shape, DistributedDataParallelOptions options) {
  for (const int ranks : {2, 3})
    run_ranks(kBackend, ranks, [&](const Group& group) {
      DistributedDataParallelOptions own = options;
      own.group = group;
      auto model =
          DistributedDataParallel(std::make_shared<Checkpointed>(shape), own);
      for (int step = 0; step < 4; ++step) {
        model.zero_grad();
        backward(model, *group, step);
        EXPECT_LE(largest_difference(gradients_of(*model),
                                     expected_gradients(shape, ranks, step)),
                  kTolerance)
            << "step " << step;
      }
    });
}

TEST(Checkpoints, AreReducedLikeAnyPartOfTheGraph) {
  for (const Shape shape :
       {Shape::kEachLayerOnce, Shape::kAllInside, Shape::kNested})
    for (const std::size_t bytes : {0, 1 << 20})
      for (const bool is_static : {false, true})
        expect_averages(shape, {.first_bucket_bytes = bytes,
                                .bucket_bytes = bytes,
                                .static_graph = is_static});
}

TEST(Checkpoints, ShareParametersWithStaticGraph) {
  for (const std::size_t bytes : {0, 300, 1 << 20})
    expect_averages(Shape::kShared, {.first_bucket_bytes = bytes,
                                     .bucket_bytes = bytes,
                                     .static_graph = true});
}

TEST(Checkpoints, ThatShareParametersAreRefusedWithoutStaticGraph) {
  run_ranks(kBackend, 2, [](const Group& group) {
    auto model = DistributedDataParallel(
        std::make_shared<Checkpointed>(Shape::kShared),
        {.group = group, .first_bucket_bytes = 0, .bucket_bytes = 0});
    const std::string message = message_of([&] {
      for (int step = 0; step < 2; ++step) backward(model, *group, step);
    });
    EXPECT_THAT(message, HasSubstr("got a second gradient in one"));
    EXPECT_THAT(message, HasSubstr("set static_graph"));
  });
}

TEST(StaticGraph, OverlapsFromTheSecondPassOn) {
  run_ranks(kBackend, 2, [](const Group& group) {
    const RecordingGroup recorded(group);
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), recorded.group(), kStatic);
    for (const char letter : {'a', 'b'})
      bag[letter].register_hook([&, letter](const at::Tensor&) {
        recorded.record(std::string(1, letter));
      });
    const std::string reduce = "all_reduce";
    bag.forward("ba", 1).backward();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("b", "a", reduce, reduce, reduce, "all_gather",
                            "broadcast"));
    bag.forward("ba", 1).backward();
    EXPECT_THAT(recorded.take_events(),
                ElementsAre("b", reduce, "a", reduce, reduce));
  });
}

TEST(StaticGraph, KnowsWhatEachRankDoesNotUse) {
  for (const int ranks : {2, 3, 4})
    run_ranks(kBackend, ranks, [](const Group& group) {
      ParameterBag bag("abcd");
      const auto reducer =
          Reducer::make(named_parameters_of(bag), group, kStatic);
      for (int step = 0; step < 4; ++step) {
        bag.zero_grad();
        bag.forward(group->rank() == 0 ? "acd" : "ad", 2).backward();
        EXPECT_THAT(bag.gradients(),
                    ElementsAre(2, IsNan(), float(2.0 / group->size()), 2));
      }
    });
}

TEST(StaticGraph, IsTheFirstReducedPassAndWorksWithNoSync) {
  run_ranks(kBackend, 2, [](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, kStatic);
    for (int step = 0; step < 3; ++step) {
      bag.zero_grad();
      {
        const NoSync guard(reducer->policy());
        bag.forward("ba", 1).backward();
      }
      bag.forward("ba", group->rank()).backward();
      EXPECT_THAT(bag.gradients(), ElementsAre(1.5, 1.5, IsNan()));
    }
  });
}

TEST(StaticGraph, ThatMissesAGradientIsAnErrorOnEveryRank) {
  run_ranks(kBackend, 3, [](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, kStatic);
    bag.forward("abc", 1).backward();
    const auto pass = [&] {
      bag.forward(group->rank() == 1 ? "ac" : "abc", 1).backward();
    };
    const std::string message = message_of(pass);
    EXPECT_THAT(message, HasSubstr("missing: b on rank 1\n"));
    EXPECT_THAT(message, HasSubstr("graph differs from that of the first"));
    bag.zero_grad();
    bag.forward("abc", 4).backward();
    EXPECT_THAT(bag.gradients(), ElementsAre(4, 4, 4));
  });
}

TEST(StaticGraph, ThatUsesAnotherParameterIsAnErrorOnEveryRank) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    ParameterBag bag;
    const auto reducer =
        Reducer::make(named_parameters_of(bag), group, kStatic);
    bag.forward("ab", 1).backward();
    const std::string message = message_of([&] {
      bag.forward(group->rank() == 1 ? "abc" : "ab", 1).backward();
      group->barrier().wait();
    });
    EXPECT_THAT(message, HasSubstr("parameter c got a gradient that it did not "
                                   "get in the first pass"));
  });
}

TEST(StaticGraph, ThatBringsOneMoreGradientIsAnErrorOnEveryRank) {
  run_ranks(kBackend, 2, [&](const Group& group) {
    auto model = DistributedDataParallel(
        std::make_shared<Checkpointed>(Shape::kEachLayerOnce),
        {.group = group, .static_graph = true});
    backward(model, *group);
    if (group->rank() == 1) model->shape = Shape::kShared;
    const std::string message = message_of([&] {
      backward(model, *group);
      group->barrier().wait();
    });
    EXPECT_THAT(message, HasSubstr("that it did not get in the first pass"));
    EXPECT_THAT(message, HasSubstr("static_graph"));
  });
}

}  // namespace
}  // namespace lockstep
