// Tests of several reducers in one backward pass; each rank uses any of their
// parameters, in its own order.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/horovod.h"
#include "src/base/testing/test_seed.h"
#include "src/comm/testing/run_ranks.h"
#include "src/torch/testing/parameter_bag.h"

namespace lockstep {
namespace {

using testing::HasSubstr;

using Random = std::mt19937_64;

constexpr char kLetters[] = "abc";

// A collective of the program's own, in the middle of a backward pass.
struct SumInBackward : torch::autograd::Function<SumInBackward> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& input,
                            ProcessGroup* group) {
    context->saved_data["group"] = reinterpret_cast<std::int64_t>(group);
    return input.clone();
  }
  static torch::autograd::variable_list backward(
      Context* context, torch::autograd::variable_list gradients) {
    auto& group =
        *reinterpret_cast<ProcessGroup*>(context->saved_data["group"].toInt());
    std::vector<int> sum{1};
    group.all_reduce(view(sum), ReduceOp::kSum).wait();
    EXPECT_EQ(sum.front(), group.size());
    return {gradients.at(0), {}};
  }
};

// The gradient of letter `letter` of bag `bag`, or a place for a collective of
// the program.
struct Turn {
  std::size_t bag = 0;
  char letter = 'a';
  bool talks = false;
};

// The turns of each rank in a pass, which all ranks draw alike: at least one
// letter of each bag, and two collectives.
class RandomPass {
 public:
  RandomPass(Random& random, int ranks, std::size_t bags) {
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<Turn> turns{{.talks = true}, {.talks = true}};
      for (std::size_t bag = 0; bag < bags; ++bag) {
        const std::uint64_t used = 1 + random() % 7;
        for (unsigned i = 0; i < 3; ++i)
          if ((used >> i & 1) != 0) turns.push_back({bag, kLetters[i]});
      }
      std::shuffle(turns.begin(), turns.end(), random);
      turns_.push_back(std::move(turns));
    }
  }

  at::Tensor loss(std::vector<ParameterBag>& bags, ProcessGroup& group) const {
    at::Tensor chain = torch::zeros({}).requires_grad_();
    for (const Turn& turn : turns_[static_cast<std::size_t>(group.rank())])
      chain =
          turn.talks
              ? SumInBackward::apply(chain, &group)
              : chain +
                    (bags[turn.bag][turn.letter] * factor(group.rank())).sum();
    return chain;
  }

  // NaN where no rank uses it.
  double expected(std::size_t bag, char letter) const {
    double sum = 0;
    for (std::size_t rank = 0; rank < turns_.size(); ++rank)
      for (const Turn& turn : turns_[rank])
        if (!turn.talks && turn.bag == bag && turn.letter == letter)
          sum += factor(static_cast<int>(rank));
    if (sum == 0) return std::numeric_limits<double>::quiet_NaN();
    return sum / static_cast<double>(turns_.size());
  }

 private:
  static double factor(int rank) { return rank + 1; }

  std::vector<std::vector<Turn>> turns_;
};

// Two reducers in one group, and one in another.
void run_random_passes(const Group& group, std::uint64_t seed) {
  constexpr int kPasses = 25;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::vector<int> everybody(static_cast<std::size_t>(group->size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const Group other = new_group(*group, everybody);
  std::vector<ParameterBag> bags(3);
  std::vector<std::shared_ptr<Reducer>> reducers;
  std::size_t bucket_bytes = 0;
  for (const auto& of : {group, other, group}) {
    const ReducerOptions options{.first_bucket_bytes = bucket_bytes,
                                 .bucket_bytes = bucket_bytes,
                                 .find_unused_parameters = true};
    reducers.push_back(
        Reducer::make(named_parameters_of(bags[reducers.size()]), of, options));
    bucket_bytes = bucket_bytes * 64 + 32;
  }
  Random random(seed);
  for (int i = 0; i < kPasses; ++i) {
    const RandomPass pass(random, group->size(), bags.size());
    for (ParameterBag& bag : bags) bag.zero_grad();
    pass.loss(bags, *group).backward();
    for (std::size_t bag = 0; bag < bags.size(); ++bag) {
      const auto gradients = bags[bag].gradients();
      for (std::size_t letter = 0; letter < 3; ++letter)
        EXPECT_THAT(gradients[letter],
                    testing::NanSensitiveDoubleNear(
                        pass.expected(bag, kLetters[letter]), kTolerance))
            << "pass " << i << ", bag " << bag << ", " << kLetters[letter];
    }
  }
}

TEST(SeveralReducers, AverageWhateverEachRankUsesInWhateverOrder) {
  const std::uint64_t seed = test_seed();
  for (const char* backend : {"shm", "gloo", "hybrid"})
    for (const int ranks : {2, 3})
      run_ranks(backend, ranks, [&](const Group& group) {
        run_random_passes(group, seed + static_cast<std::uint64_t>(ranks));
      });
}

// One pass over both bags; a rank that misses something leaves out `a`.
void pass_over(std::vector<ParameterBag>& bags, const std::string& missing) {
  at::Tensor loss = torch::zeros({});
  for (std::size_t i = 0; i < bags.size(); ++i) {
    const bool part = missing.find(std::to_string(i)) != std::string::npos;
    loss = loss + bags[i].forward(part ? "bc" : "abc", 2);
  }
  loss.backward();
}

// The reported error, and the state afterwards, do not depend on which reducer
// misses a gradient on which rank.
TEST(SeveralReducers, GoOnAfterAMissingGradient) {
  run_ranks(kBackend, 2, [](const Group& group) {
    std::vector<ParameterBag> bags(2);
    std::vector<std::shared_ptr<Reducer>> reducers;
    for (const ParameterBag& bag : bags)
      reducers.push_back(
          Reducer::make(named_parameters_of(bag), group, kBucketAParameter));
    const std::vector<std::vector<std::string>> missing{
        {"0", ""}, {"", "1"}, {"0", "1"}, {"1", "0"}, {"01", "01"}};
    for (const auto& of_ranks : missing) {
      for (ParameterBag& bag : bags) bag.zero_grad();
      const auto rank = static_cast<std::size_t>(group->rank());
      EXPECT_THROW(pass_over(bags, of_ranks[rank]), InvalidArgument);
      for (ParameterBag& bag : bags) bag.zero_grad();
      pass_over(bags, "");
      for (const ParameterBag& bag : bags)
        EXPECT_THAT(bag.gradients(), testing::ElementsAre(2, 2, 2));
    }
    std::vector<int> sum{1};
    group->all_reduce(view(sum), ReduceOp::kSum).wait();
    EXPECT_EQ(sum.front(), 2);
  });
}

std::shared_ptr<CommHook> post_local_hook(const Group& group) {
  return std::make_shared<PostLocalSgdHook>(
      PostLocalSgdOptions{.subgroup = group});
}

TEST(SeveralReducers, MayHaveCommunicationHooks) {
  for (const bool post_local : {false, true})
    run_ranks(kBackend, 2, [&](const Group& group) {
      std::vector<ParameterBag> bags(2);
      std::vector<std::shared_ptr<Reducer>> reducers;
      for (const ParameterBag& bag : bags) {
        reducers.push_back(
            Reducer::make(named_parameters_of(bag), group,
                          ReducerOptions{.first_bucket_bytes = 0,
                                         .bucket_bytes = 0,
                                         .find_unused_parameters = true}));
        reducers.back()->register_comm_hook(post_local ? post_local_hook(group)
                                                       : fp16_compress_hook());
      }
      for (int i = 0; i < 4; ++i) {
        for (ParameterBag& bag : bags) bag.zero_grad();
        pass_over(bags, group->rank() == i % 2 ? "0" : "1");
        for (const ParameterBag& bag : bags)
          EXPECT_THAT(bag.gradients(), testing::ElementsAre(1, 2, 2));
      }
    });
}

// When a pass ends in an exception, the other ranks of both groups learn of it.
TEST(SeveralReducers, AreAllGivenUpWithTheirPass) {
  run_ranks(kBackend, 2, [](const Group& group) {
    std::vector<ParameterBag> bags(2);
    std::vector<std::shared_ptr<Reducer>> reducers;
    for (const ParameterBag& bag : bags)
      reducers.push_back(
          Reducer::make(named_parameters_of(bag), group, kBucketAParameter));
    if (group->rank() == 1) {
      EXPECT_THROW(pass_over(bags, ""), PeerFailure);
      return;
    }
    const at::Tensor failing = bags[0]['a'] * 1;
    failing.register_hook([](const at::Tensor&) -> at::Tensor {
      throw std::runtime_error("a hook of the program fails");
    });
    const at::Tensor loss =
        failing.sum() + bags[1].forward("abc", 2) + bags[0].forward("bc", 2);
    EXPECT_THAT(message_of([&] { loss.backward(); }),
                HasSubstr("a hook of the program fails"));
  });
}

// Generator and discriminator: one pass goes through both, and a rank leaves a
// part of the first unused.
TEST(SeveralReducers, AreTwoDistributedOptimizers) {
  run_ranks(kBackend, 2, [](const Group& group) {
    std::vector<ParameterBag> bags(2);
    std::vector<
        std::unique_ptr<horovod::DistributedOptimizer<torch::optim::SGD>>>
        all;
    for (const ParameterBag& bag : bags)
      all.push_back(
          std::make_unique<horovod::DistributedOptimizer<torch::optim::SGD>>(
              torch::optim::SGD(bag.parameters(), 0.1), bag.named_parameters(),
              horovod::DistributedOptimizerOptions{.group = group}));
    for (int step = 0; step < 4; ++step) {
      for (const auto& optimizer : all) optimizer->zero_grad();
      pass_over(bags, group->rank() == step % 2 ? "0" : "1");
      for (const auto& optimizer : all) optimizer->step();
      for (const ParameterBag& bag : bags)
        EXPECT_THAT(bag.gradients(), testing::ElementsAre(1, 2, 2));
    }
  });
}

}  // namespace
}  // namespace lockstep
