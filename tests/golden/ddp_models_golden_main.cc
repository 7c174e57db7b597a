// One rank that trains models of many kinds under DistributedDataParallel.
//
//   lockstep_ddp_models_golden RANK RANKS DIRECTORY MODEL.RULE.WAY…
//
// ddp_models_golden.py writes words.i64, numbers.f32, labels.i64 and the
// weights of each model, MODEL.safetensors, to DIRECTORY and lists the jobs;
// the last rank's parameters and running statistics, which are rank 0's by
// then, go to JOB.safetensors. WAY is unsharded, sharded, or one_pass: the
// sharded optimizer averages gradients.
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/optimizers.h"
#include "lockstep/torch/zero_redundancy_optimizer.h"
#include "src/torch/testing/tensor_file.h"

namespace lockstep {
namespace {

// The same numbers and models stand in ddp_models_golden.py.
constexpr int kSteps = 10;
constexpr int kBatch = 12;
constexpr int kWords = 30;
constexpr int kLength = 6;
constexpr int kNumbers = 192;
constexpr int kClasses = 10;
constexpr int kSeed = 7;
constexpr int kNanFromStep = 5;

struct Samples {
  at::Tensor words, numbers, labels;
};

struct Model : torch::nn::Module {
  virtual at::Tensor forward(const Samples& samples) = 0;

  template <class Layer>
  Layer add(const char* name, Layer layer) {
    return register_module(name, layer);
  }
};

struct Mlp : Model {
  explicit Mlp(double p) : dropout(add("dropout", torch::nn::Dropout(p))) {}
  at::Tensor forward(const Samples& samples) override {
    const at::Tensor input = samples.numbers.narrow(1, 0, 12);
    return last(dropout(torch::relu(first(input))));
  }
  torch::nn::Linear first = add("first", torch::nn::Linear(12, 16));
  torch::nn::Dropout dropout;
  torch::nn::Linear last = add("last", torch::nn::Linear(16, kClasses));
};

struct Embedding : Model {
  explicit Embedding(bool sparse = false)
      : table(add("table",
                  torch::nn::Embedding(
                      torch::nn::EmbeddingOptions(kWords, 8).sparse(sparse)))) {
  }
  at::Tensor forward(const Samples& samples) override {
    return last(table(samples.words).mean(1));
  }
  torch::nn::Embedding table;
  torch::nn::Linear last = add("last", torch::nn::Linear(8, kClasses));
};

struct Tied : Model {
  at::Tensor forward(const Samples& samples) override {
    return torch::linear(torch::tanh(inner(encoder(samples.words).mean(1))),
                         decoder);
  }
  torch::nn::Embedding encoder =
      add("encoder", torch::nn::Embedding(kWords, 8));
  torch::nn::Linear inner = add("inner", torch::nn::Linear(8, 8));
  at::Tensor decoder = register_parameter("decoder", encoder->weight);
};

struct Lstm : Model {
  at::Tensor forward(const Samples& samples) override {
    const at::Tensor input =
        samples.numbers.narrow(1, 0, 48).reshape({-1, kLength, 8});
    return last(std::get<0>(net(input)).select(1, -1));
  }
  torch::nn::LSTM net = add(
      "net",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(8, 12).num_layers(2).batch_first(true).dropout(
              0.25)));
  torch::nn::Linear last = add("last", torch::nn::Linear(12, kClasses));
};

struct Gru : Model {
  at::Tensor forward(const Samples& samples) override {
    const at::Tensor input =
        samples.numbers.narrow(1, 0, 48).reshape({-1, kLength, 8});
    return last(std::get<0>(net(input)).mean(1));
  }
  torch::nn::GRU net = add(
      "net",
      torch::nn::GRU(
          torch::nn::GRUOptions(8, 12).batch_first(true).bidirectional(true)));
  torch::nn::Linear last = add("last", torch::nn::Linear(24, kClasses));
};

struct Transformer : Model {
  at::Tensor forward(const Samples& samples) override {
    return last(net(table(samples.words.t()) + places).mean(0));
  }
  at::Tensor places =
      register_parameter("places", torch::zeros({kLength, 1, 16}));
  torch::nn::Embedding table = add("table", torch::nn::Embedding(kWords, 16));
  torch::nn::TransformerEncoder net =
      add("net", torch::nn::TransformerEncoder(
                     torch::nn::TransformerEncoderLayer(
                         torch::nn::TransformerEncoderLayerOptions(16, 4)
                             .dim_feedforward(32)
                             .dropout(0.1)),
                     2));
  torch::nn::Linear last = add("last", torch::nn::Linear(16, kClasses));
};

struct BatchNorm : Model {
  at::Tensor forward(const Samples& samples) override {
    const at::Tensor images = samples.numbers.reshape({-1, 3, 8, 8});
    const at::Tensor x = torch::relu(norm1(conv1(images)));
    return last(torch::relu(norm2(conv2(x))).mean({2, 3}));
  }
  torch::nn::Conv2d conv1 = add(
      "conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)));
  torch::nn::BatchNorm2d norm1 = add("norm1", torch::nn::BatchNorm2d(6));
  torch::nn::Conv2d conv2 = add(
      "conv2", torch::nn::Conv2d(
                   torch::nn::Conv2dOptions(6, 8, 3).stride(2).bias(false)));
  torch::nn::BatchNorm2d norm2 = add("norm2", torch::nn::BatchNorm2d(8));
  torch::nn::Linear last = add("last", torch::nn::Linear(8, kClasses));
};

std::shared_ptr<Model> make_model(const std::string& name) {
  if (name == "dropout_on") return std::make_shared<Mlp>(0.3);
  if (name == "embedding") return std::make_shared<Embedding>();
  if (name == "sparse") return std::make_shared<Embedding>(/*sparse=*/true);
  if (name == "tied") return std::make_shared<Tied>();
  if (name == "lstm") return std::make_shared<Lstm>();
  if (name == "gru") return std::make_shared<Gru>();
  if (name == "transformer") return std::make_shared<Transformer>();
  if (name == "batch_norm") return std::make_shared<BatchNorm>();
  return std::make_shared<Mlp>(0);
}

struct Job {
  explicit Job(const std::string& text) {
    std::istringstream parts(text);
    std::getline(parts, model, '.');
    std::getline(parts, rule, '.');
    std::getline(parts, way);
    if (way != "unsharded" && way != "sharded" && way != "one_pass")
      throw std::invalid_argument("there is no way " + way);
  }
  std::string model, rule, way;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const Job& job, const std::vector<at::Tensor>& parameters) {
  const auto sgd = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto adamw = torch::optim::AdamWOptions(0.01).eps(1e-3);
  if (job.way == "unsharded") {
    if (job.rule == "sgd") return std::make_unique<FusedSGD>(parameters, sgd);
    return std::make_unique<FusedAdamW>(parameters, adamw);
  }
  const ZeroRedundancyOptimizerOptions options{.averages_gradients =
                                                   job.way == "one_pass"};
  if (job.rule == "sgd")
    return std::make_unique<ZeroRedundancyOptimizer>(parameters, sgd, options);
  return std::make_unique<ZeroRedundancyOptimizer>(parameters, adamw, options);
}

// All data of a job, by step and rank.
Samples read_samples(const std::string& directory, int ranks) {
  const std::int64_t share = kBatch / ranks;
  return {
      read_tensor(directory + "/words.i64", {kSteps, ranks, share, kLength},
                  at::kLong),
      read_tensor(directory + "/numbers.f32", {kSteps, ranks, share, kNumbers}),
      read_tensor(directory + "/labels.i64", {kSteps, ranks, share},
                  at::kLong)};
}

Samples samples_of(const Samples& all, const std::string& model, int step) {
  const int rank = default_group()->rank();
  Samples mine{all.words[step][rank], all.numbers[step][rank].clone(),
               all.labels[step][rank]};
  if (model == "nan" && step >= kNanFromStep &&
      rank == default_group()->size() - 1)
    mine.numbers[0][0] = std::nan("");
  return mine;
}

void run(const Job& job, const std::string& directory) {
  const int rank = default_group()->rank();
  const Samples all = read_samples(directory, default_group()->size());
  const auto net = make_model(job.model);
  if (rank == 0)
    load_checkpoint(directory + "/" + job.model + ".safetensors", *net);
  DistributedDataParallel model(net,
                                {.average_gradients = job.way != "one_pass",
                                 .sparse_as_dense = job.model == "sparse"});
  const auto optimizer = make_optimizer(job, net->parameters());
  torch::manual_seed(kSeed + rank);
  for (int step = 0; step < kSteps; ++step) {
    const Samples samples = samples_of(all, job.model, step);
    optimizer->zero_grad();
    torch::cross_entropy_loss(model(samples), samples.labels).backward();
    optimizer->step();
  }
  model.broadcast_buffers();
  if (rank == default_group()->size() - 1)
    save_checkpoint(directory + "/" + job.model + "." + job.rule + "." +
                        job.way + ".safetensors",
                    *net);
}

void run_all(int argc, char** argv) {
  torch::set_num_threads(1);
  const std::string directory = argv[3];
  init_process_group({.backend = "shm",
                      .init_method = "file://" + directory + "/ours",
                      .world_size = std::stoi(argv[2]),
                      .rank = std::stoi(argv[1])});
  for (int i = 4; i < argc; ++i) run(Job(argv[i]), directory);
  destroy_process_group();
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s RANK RANKS DIRECTORY JOB...\n", argv[0]);
    return 2;
  }
  try {
    lockstep::run_all(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
