#include "lockstep/torch/data_parallel.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>

#include <array>
#include <atomic>
#include <set>
#include <sstream>
#include <thread>

#include "lockstep/base/error.h"
#include "src/torch/frontends/data_parallel/module_replicas.h"
#include "src/torch/frontends/data_parallel/parallel_apply.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep::data_parallel {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

DataParallelOptions slots(int count) {
  return {.devices = std::vector<at::Device>(static_cast<std::size_t>(count),
                                             at::kCPU),
          .factory = [] { return std::make_shared<Net>(); }};
}

std::vector<std::int64_t> lengths(std::int64_t samples, int devices) {
  const std::vector<at::Device> slots(static_cast<std::size_t>(devices),
                                      at::kCPU);
  std::vector<std::int64_t> lengths;
  for (const at::Tensor& piece : scatter(torch::ones({samples, 2}), slots))
    lengths.push_back(piece.size(0));
  return lengths;
}

TEST(Scatter, CutsABatchAsPyTorchDoes) {
  EXPECT_THAT(lengths(30, 2), ElementsAre(15, 15));
  EXPECT_THAT(lengths(30, 3), ElementsAre(10, 10, 10));
  EXPECT_THAT(lengths(30, 4), ElementsAre(8, 8, 8, 6));
  EXPECT_THAT(lengths(5, 4), ElementsAre(2, 2, 1));
  EXPECT_THAT(lengths(1, 4), ElementsAre(1));
}

TEST(DataParallel, ComputesWhatTheModuleComputes) {
  for (const int devices : {1, 2, 3, 4}) {
    Net alone;
    auto model = DataParallel(Net(), slots(devices));
    const Share batch = share_of_batch(0, 0, 1, 3);
    const at::Tensor output = model(batch.input);
    EXPECT_LE(largest_difference({output}, {alone.forward(batch.input)}),
              kTolerance);
    loss_of(output, batch.target).backward();
    EXPECT_LE(
        largest_difference(gradients_of(*model), gradients_of_one_process(3)),
        kTolerance);
  }
}

TEST(DataParallel, TrainsAsOneModuleWhateverTheBatch) {
  const auto share = [](int step) {
    Share whole = share_of_batch(step, 0, 1, 3);
    const std::int64_t length = 1 + 5 * step % 12;  // some below the devices
    return Share{whole.input.narrow(0, 0, length),
                 whole.target.narrow(0, 0, length)};
  };
  Net alone;
  torch::optim::SGD plain(alone.parameters(), 0.1);
  train(alone, plain, share, 20);
  for (const int devices : {2, 4}) {
    auto model = DataParallel(Net(), slots(devices));
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    train(model, optimizer, share, 20);
    EXPECT_LE(largest_difference(model.parameters(), alone.parameters()),
              2 * kTolerance);
  }
}

TEST(DataParallel, GivesTheSameBitsInEveryRun) {
  const auto run = [] {
    auto model = DataParallel(Net(), slots(4));
    torch::optim::SGD optimizer(model.parameters(), 0.1);
    train(
        model, optimizer,
        [](int step) { return share_of_batch(step, 0, 1, 4); }, 10);
    return model.parameters();
  };
  EXPECT_EQ(largest_difference(run(), run()), 0);
}

// Records the threads in which it runs, forward and backward.
struct NotesThreads : torch::nn::Cloneable<NotesThreads> {
  NotesThreads() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(6, 3));
  }
  at::Tensor forward(const at::Tensor& input) {
    forward_thread = std::this_thread::get_id();
    at::Tensor output = layer(input);
    output.register_hook([this](const at::Tensor&) {
      backward_thread = std::this_thread::get_id();
    });
    return output;
  }
  torch::nn::Linear layer{nullptr};
  std::thread::id forward_thread, backward_thread;
};

TEST(DataParallel, RunsEachReplicaInAThreadOfItsOwnBothWays) {
  const std::vector<at::Device> devices(3, at::kCPU);
  DataParallelReplicas replicas(std::make_shared<NotesThreads>(),
                                {.devices = devices});
  const auto outputs = replicas.apply(
      replicas.scatter_all({torch::ones({6, 6})}),
      [&](int i, const std::vector<at::Tensor>& inputs) {
        return std::vector<at::Tensor>{
            static_cast<NotesThreads&>(replicas.replica(i)).forward(inputs[0])};
      });
  outputs[0].sum().backward();
  std::set<std::thread::id> threads{std::this_thread::get_id()};
  for (int i = 0; i < 3; ++i) {
    const auto& module = static_cast<NotesThreads&>(replicas.replica(i));
    EXPECT_EQ(module.forward_thread, module.backward_thread);
    threads.insert(module.forward_thread);
  }
  EXPECT_EQ(threads.size(), 4);
}

struct CountsCopies : Net {
  CountsCopies() { ++made; }
  static inline std::atomic<int> made = 0;
};

TEST(DataParallel, MakesReplicasOnce) {
  auto model = DataParallel(
      std::make_shared<CountsCopies>(),
      {.devices = {at::kCPU, at::kCPU, at::kCPU},
       .factory = [] { return std::make_shared<CountsCopies>(); }});
  EXPECT_EQ(CountsCopies::made, 4);  // including the module itself
  for (int pass = 0; pass < 3; ++pass) model(torch::ones({6, 6}));
  EXPECT_EQ(CountsCopies::made, 4);
}

TEST(DataParallel, SharesTheParametersOfOneDevice) {
  auto model = DataParallel(Net(), slots(3));
  model(torch::ones({6, 6}));
  const auto memory = model.memory();
  ASSERT_EQ(memory.size(), 3);
  EXPECT_GT(memory[0].replica_bytes, 0);
  EXPECT_EQ(memory[1].replica_bytes, 0);
  EXPECT_EQ(memory[2].input_bytes, 2 * 6 * sizeof(float));
  EXPECT_EQ(memory[2].output_bytes, 2 * 3 * sizeof(float));
}

TEST(DataParallel, SeesWhatHappensToTheModule) {
  auto model = DataParallel(Net(), slots(2));
  const at::Tensor input = share_of_batch(0, 0, 1, 1).input;
  const auto check = [&] {
    const at::NoGradGuard no_grad;
    EXPECT_LE(largest_difference({model(input)}, {model->forward(input)}),
              kTolerance);
  };
  check();
  fill(*model, 3);  // in place
  check();
  model->first->weight.set_data(torch::ones_like(model->first->weight));
  check();
  model->first->weight.data().mul_(2);
  check();
  model->first->weight.requires_grad_(false);
  model(input).sum().backward();
  EXPECT_FALSE(model->first->weight.grad().defined());
  EXPECT_TRUE(model->second->weight.grad().defined());
}

struct NormNet : torch::nn::Cloneable<NormNet> {
  NormNet() { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    dropout = register_module("dropout", torch::nn::Dropout(0.5));
  }
  at::Tensor forward(const at::Tensor& input) { return dropout(norm(input)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
};

// Its output is not a function of its tensors alone.
struct ScaledNet : torch::nn::Cloneable<ScaledNet> {
  void reset() override {}
  at::Tensor forward(const at::Tensor& input) { return input * scale; }
  double scale = 1;
};

TEST(DataParallel, CopiesTheWholeModuleAnewWhenAsked) {
  const auto module = std::make_shared<ScaledNet>();
  DataParallel model(module, {.devices = {at::kCPU, at::kCPU}});
  const at::Tensor input = at::ones({4});
  const at::Tensor before = model(input);
  model->scale = 10;
  EXPECT_TRUE(model(input).equal(before));
  model.renew_replicas();
  EXPECT_TRUE(model(input).equal(before * 10));
}

TEST(DataParallel, KeepsTheFirstReplicasRunningStatistics) {
  auto model = DataParallel(NormNet(), {.devices = {at::kCPU, at::kCPU}});
  NormNet alone;
  for (int pass = 0; pass < 3; ++pass) {
    const at::Tensor input = wave({8, 6}, pass);
    model(input);
    alone.forward(input.narrow(0, 0, 4));
    EXPECT_LE(largest_difference(model->buffers(), alone.buffers()),
              kTolerance);
  }
}

TEST(DataParallel, FollowsTheModeOfEachSubmodule) {
  auto model = DataParallel(NormNet(), {.devices = {at::kCPU, at::kCPU}});
  const at::Tensor input = wave({8, 6}, 0);
  model->dropout->eval();
  EXPECT_TRUE(model(input).narrow(0, 4, 4).ne(0).all().item<bool>());
  model.eval();
  const at::Tensor before = model->norm->running_mean.clone();
  EXPECT_LE(largest_difference({model(input)}, {model->forward(input)}),
            kTolerance);
  EXPECT_TRUE(model->norm->running_mean.equal(before));
  model.train();
  EXPECT_FALSE(model(input).narrow(0, 4, 4).ne(0).all().item<bool>());
}

TEST(DataParallel, GivesGradientsToItsInputs) {
  auto model = DataParallel(Net(), slots(3));
  at::Tensor input = wave({9, 6}, 0).requires_grad_();
  (model(input * 2) * wave({9, 3}, 1)).sum().backward();
  const at::Tensor gradient = input.grad().clone();
  input.mutable_grad().reset();
  (model->forward(input * 2) * wave({9, 3}, 1)).sum().backward();
  EXPECT_LE(largest_difference({gradient}, {input.grad()}), kTolerance);
}

// One layer under two names.
struct TiedLayers : torch::nn::Cloneable<TiedLayers> {
  TiedLayers() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(3, 3));
    same = register_module("same", layer);
    fill(*this, 1);
  }
  at::Tensor forward(const at::Tensor& input) {
    return same(torch::tanh(layer(input)));
  }
  torch::nn::Linear layer{nullptr}, same{nullptr};
};

TEST(DataParallel, CountsTiedParametersOnce) {
  for (const int devices : {1, 3}) {
    DataParallelOptions options = slots(devices);
    options.factory = [] { return std::make_shared<TiedLayers>(); };
    auto model = DataParallel(TiedLayers(), options);
    const at::Tensor input = wave({6, 3}, 0);
    model(input).sum().backward();
    const auto gradients = gradients_of(*model);
    std::vector<at::Tensor> copies;
    for (const at::Tensor& gradient : gradients)
      copies.push_back(gradient.clone());
    model.zero_grad();
    model->forward(input).sum().backward();
    EXPECT_LE(largest_difference(copies, gradients_of(*model)), kTolerance);
  }
}

TEST(DataParallel, ShowsHooksTheSumOfAllReplicas) {
  auto model = DataParallel(Net(), slots(3));
  int calls = 0;
  model->first->weight.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  const Share batch = share_of_batch(0, 0, 1, 3);
  loss_of(model(batch.input), batch.target).backward();
  EXPECT_EQ(calls, 1);
  EXPECT_LE(largest_difference({model->first->weight.grad()},
                               {gradients_of_one_process(3)[0] * 2}),
            kTolerance);
}

TEST(DataParallel, AllowsSeveralForwardPassesBeforeABackwardPass) {
  auto model = DataParallel(NormNet(), {.devices = {at::kCPU, at::kCPU}});
  const at::Tensor first = model(wave({8, 6}, 0));
  const at::Tensor second = model(wave({8, 6}, 1));
  (first + second).sum().backward();
  EXPECT_TRUE(model->norm->weight.grad().defined());
}

// Time steps before samples, as recurrent layers take them.
struct TimeFirst : torch::nn::Cloneable<TimeFirst> {
  TimeFirst() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(3, 4));
    fill(*this, 1);
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& input) {
    const at::Tensor output = torch::tanh(layer(input));
    return {output.cumsum(0), output.mean()};
  }
  torch::nn::Linear layer{nullptr};
};

TEST(DataParallel, CutsAndJoinsAlongAnotherDimension) {
  for (const std::int64_t dim : {1, -2}) {
    TimeFirst alone;
    const at::Tensor input = wave({5, 7, 3}, 0).requires_grad_();
    const at::Tensor same = wave({5, 7, 3}, 0).requires_grad_();
    auto model = DataParallel(TimeFirst(),
                              {.devices = std::vector<at::Device>(3, at::kCPU),
                               .dim = dim,
                               .output_device = at::kCPU});
    const auto [output, means] = model(input);
    const auto [expected, mean] = alone.forward(same);
    EXPECT_EQ(means.sizes(), std::vector<std::int64_t>{3});
    EXPECT_LE(largest_difference({output}, {expected}), kTolerance);
    (output * wave({5, 7, 4}, 2)).sum().backward();
    (expected * wave({5, 7, 4}, 2)).sum().backward();
    EXPECT_LE(largest_difference({input.grad()}, {same.grad()}), kTolerance);
    EXPECT_LE(largest_difference(gradients_of(*model), gradients_of(alone)),
              2 * kTolerance);
  }
}

TEST(DataParallel, RefusesADimensionThatATensorDoesNotHave) {
  auto model =
      DataParallel(TimeFirst(), {.devices = {at::kCPU, at::kCPU}, .dim = 3});
  EXPECT_THAT(message_of([&] {
                model(wave({5, 7, 3}, 0));
              }),
              HasSubstr("[5, 7, 3] cannot be divided over devices along "
                        "dimension 3"));
}

TEST(DataParallel, IsSavedAndLoadedAsItsModule) {
  auto model = DataParallel(Net(), slots(2));
  fill(*model, 3);
  std::stringstream file;
  torch::save(model, file);
  auto other = DataParallel(Net(), slots(2));
  torch::load(other, file);
  EXPECT_EQ(largest_difference(other.parameters(), model.parameters()), 0);
}

struct Masked : torch::nn::Cloneable<Masked> {
  void reset() override {}
  std::array<at::Tensor, 2> forward(const std::array<at::Tensor, 2>& inputs,
                                    const at::Tensor& mask) {
    return {inputs[0] + inputs[1], mask};
  }
};

TEST(DataParallel, LeavesUndefinedTensorsAsTheyAre) {
  auto model = DataParallel(Masked(), {.devices = {at::kCPU, at::kCPU}});
  const std::array inputs{wave({6, 2}, 0), wave({6, 2}, 1)};
  const auto [sum, mask] = model(inputs, at::Tensor());
  EXPECT_TRUE(sum.equal(inputs[0] + inputs[1]));
  EXPECT_FALSE(mask.defined());
}

struct LateBuffer : torch::nn::Cloneable<LateBuffer> {
  LateBuffer() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(2, 1));
  }
  at::Tensor forward(const at::Tensor& input) {
    if (!mean.defined()) mean = register_buffer("mean", torch::zeros({2}));
    mean.add_(input.detach().mean(0));
    return layer(input - mean);
  }
  torch::nn::Linear layer{nullptr};
  at::Tensor mean;
};

// Each replica would have its own, and the module none.
TEST(DataParallel, RefusesBuffersThatAPassRegisters) {
  auto model = DataParallel(LateBuffer(), {.devices = {at::kCPU, at::kCPU}});
  model(wave({4, 2}, 0));
  EXPECT_THAT(message_of([&] {
                model(wave({4, 2}, 0));
              }),
              HasSubstr("gave a replica 1 buffers, and the module has 0"));
}

struct ReplacedBuffer : torch::nn::Cloneable<ReplacedBuffer> {
  ReplacedBuffer() { reset(); }
  void reset() override { mean = &register_buffer("mean", torch::zeros({2})); }
  at::Tensor forward(const at::Tensor& input) {
    *mean = *mean + input.detach().mean(0);
    return input - *mean;
  }
  at::Tensor* mean = nullptr;
};

// The module, whose forward() does not run, would keep the old one.
TEST(DataParallel, RefusesBuffersThatAPassReplaces) {
  auto model = DataParallel(ReplacedBuffer(), {.devices = {at::kCPU}});
  model(wave({4, 2}, 0));
  EXPECT_THAT(message_of([&] {
                model(wave({4, 2}, 0));
              }),
              HasSubstr("has replaced the buffer mean"));
}

TEST(DataParallel, LeavesTheComputeThreadsOfOthersAsTheyWere) {
  const int before = at::get_num_threads();
  at::set_num_threads(6);
  auto model = DataParallel(Net(), slots(3));
  model(torch::ones({6, 6}));
  int of_new_thread = 0;
  std::thread([&] { of_new_thread = at::get_num_threads(); }).join();
  EXPECT_EQ(of_new_thread, 6);
  EXPECT_EQ(at::get_num_threads(), 6);
  at::set_num_threads(before);
}

TEST(CopyIfChanged, CopiesWhatHasANewVersionOrIsElsewhere) {
  struct {
    SeenTensor from, to;
  } seen;
  at::Tensor from = torch::ones({3});
  const at::Tensor to = torch::zeros({3});
  const auto copied = [&] {
    const auto version = to._version();
    copy_if_changed(from, to, seen);
    EXPECT_TRUE(to.equal(from));
    return to._version() != version;
  };
  EXPECT_TRUE(copied());
  EXPECT_FALSE(copied());
  from.mul_(2);
  EXPECT_TRUE(copied());
  from = torch::full({3}, 5.0);
  EXPECT_TRUE(copied());
  to.zero_();
  EXPECT_TRUE(copied());
  EXPECT_FALSE(copied());
  // Memory that was freed is soon given out again.
  std::array<float, 3> memory{6, 6, 6};
  from.set_data(torch::from_blob(memory.data(), {3}));
  EXPECT_TRUE(copied());
  memory.fill(7);
  from.set_data(torch::from_blob(memory.data(), {3}));
  EXPECT_TRUE(copied());
}

struct ManyOutputs : torch::nn::Cloneable<ManyOutputs> {
  ManyOutputs() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(6, 3));
  }
  using Output = std::tuple<at::Tensor, std::map<std::string, at::Tensor>,
                            std::vector<at::Tensor>, int>;
  Output forward(const std::pair<at::Tensor, at::Tensor>& inputs, int factor) {
    const at::Tensor output = layer(inputs.first) * factor + inputs.second;
    return {output,
            {{"classes", output.argmax(1)}, {"loss", output.mean()}},
            {output * 2},
            factor};
  }
  torch::nn::Linear layer{nullptr};
};

TEST(DataParallel, KeepsTheTypesOfArgumentsAndOutputs) {
  auto model = DataParallel(ManyOutputs(), {.devices = {at::kCPU, at::kCPU}});
  const std::pair inputs{wave({6, 6}, 0), wave({6, 3}, 1)};
  auto [output, named, list, factor] = model(inputs, 3);
  const auto [expected, expected_named, expected_list, same] =
      model->forward(inputs, 3);
  EXPECT_LE(largest_difference({output, list[0]}, {expected, expected_list[0]}),
            kTolerance);
  EXPECT_TRUE(named["classes"].equal(expected_named.at("classes")));
  EXPECT_FALSE(named["classes"].requires_grad());
  EXPECT_THAT(named["loss"].sizes(), ElementsAre(2));  // one per replica
  EXPECT_LE(
      largest_difference({named["loss"].mean()}, {expected_named.at("loss")}),
      kTolerance);
  EXPECT_EQ(factor, 3);
  named["loss"].mean().backward();
  const at::Tensor gradient = model->layer->weight.grad().clone();
  model.zero_grad();
  expected_named.at("loss").backward();
  EXPECT_LE(largest_difference({gradient}, {model->layer->weight.grad()}),
            kTolerance);
}

TEST(DataParallel, RunsBackwardsTwiceWhereTheGraphIsRetained) {
  auto model = DataParallel(Net(), slots(2));
  const at::Tensor loss = model(wave({4, 6}, 0)).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = model->first->weight.grad().clone();
  loss.backward();
  EXPECT_LE(largest_difference({model->first->weight.grad()}, {once * 2}),
            kTolerance);
  EXPECT_THAT(message_of([&] { loss.backward(); }), HasSubstr("backward"));
}

TEST(DataParallel, OutlivesItselfInAGraph) {
  at::Tensor loss, weight;
  {
    auto model = DataParallel(Net(), slots(2));
    weight = model->first->weight;
    loss = model(wave({4, 6}, 0)).sum();
  }
  loss.backward();
  EXPECT_TRUE(weight.grad().defined());
}

struct Throws : torch::nn::Cloneable<Throws> {
  Throws() { reset(); }
  void reset() override {
    layer = register_module("layer", torch::nn::Linear(1, 1));
  }
  at::Tensor forward(const at::Tensor& input) {
    if (input[0].item<float>() > 1)
      throw Timeout("piece " + std::to_string(input[0].item<int>()));
    return layer(input);
  }
  torch::nn::Linear layer{nullptr};
};

TEST(DataParallel, ThrowsWhatTheFirstFailingReplicaThrows) {
  auto model =
      DataParallel(Throws(), {.devices = std::vector<at::Device>(4, at::kCPU)});
  const at::Tensor input = torch::arange(4.0f).reshape({4, 1});
  EXPECT_THAT(message_of([&] { model(input); }), HasSubstr("piece 2"));
  EXPECT_THROW(model(input), Timeout);
  EXPECT_NO_THROW(model(input / 4));
}

TEST(DataParallel, RefusesWhatCannotWork) {
  EXPECT_THAT(message_of([] {
                DataParallel(Net(), {.devices = {at::kCPU, at::kCPU}});
              }),
              HasSubstr("derive it from torch::nn::Cloneable"));
  EXPECT_THAT(message_of([] {
                DataParallel(Net(),
                             {.devices = {at::kCPU, at::kCPU}, .factory = [] {
                                return std::make_shared<NetWithBatchNorm>();
                              }});
              }),
              HasSubstr("replica 0 is a different model"));
  auto model = DataParallel(ManyOutputs(), {.devices = {at::kCPU, at::kCPU}});
  EXPECT_THAT(message_of([&] {
                model(std::pair{torch::ones({4, 6}), torch::ones({1, 3})}, 1);
              }),
              HasSubstr("an argument has 1 samples where the first has 4"));
  // Both give two pieces.
  EXPECT_THAT(message_of([&] {
                model(std::pair{torch::ones({4, 6}), torch::ones({2, 3})}, 1);
              }),
              HasSubstr("an argument has 2 samples where the first has 4"));
  auto net = DataParallel(Net(), slots(2));
  EXPECT_THAT(message_of([&] { net(torch::tensor(1.0)); }),
              HasSubstr("without dimensions"));
  const at::Tensor loss = net(torch::ones({4, 6})).sum();
  EXPECT_THAT(message_of([&] {
                loss.backward({}, std::nullopt, /*create_graph=*/true);
              }),
              HasSubstr("create_graph"));
}

}  // namespace
}  // namespace lockstep::data_parallel
