// An ordinary LibTorch program, with LibTorch's own DataLoader and a dataset of
// its own, on one rank or on many:
//
//     ./data_loader                       alone
//     lockstep run -n 2 ./data_loader     two ranks, each on half of an epoch
//
// (*) marks what data parallelism adds. quickstart.cc uses our Loader.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

// Points of a square, labelled by whether they lie in a circle.
struct Circle : torch::data::datasets::Dataset<Circle> {
  Circle() {
    torch::manual_seed(1234);
    points = torch::rand({1024, 2}) * 2 - 1;
    labels = points.square().sum(1).lt(0.6).to(torch::kLong);
  }
  torch::data::Example<> get(std::size_t index) override {
    const auto i = static_cast<std::int64_t>(index);
    return {points[i], labels[i]};
  }
  std::optional<std::size_t> size() const override { return 1024; }

  at::Tensor points, labels;
};

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 2));
}

// Only rank 0 prints; any function can ask for the rank.
void report(std::size_t epoch, double loss) {
  if (lockstep::default_group()->rank() == 0)  // (*)
    std::printf("epoch %zu: mean loss %.3f\n", epoch, loss);
}

int main() {
  const auto group = lockstep::init_process_group();  // (*)
  auto data = Circle().map(torch::data::transforms::Stack<>());
  lockstep::DistributedSampler sampler(*data.size());  // (*)
  const auto loader = torch::data::make_data_loader(
      std::move(data), sampler, 128 / group->size());  // (*)

  auto model = lockstep::DistributedDataParallel(make_net());  // (*)
  torch::optim::SGD optimizer(model.parameters(), 0.5);

  at::Tensor mean;
  for (std::size_t epoch = 0; epoch < 30; ++epoch) {
    sampler.set_epoch(epoch);  // (*) copies share the epoch
    mean = torch::zeros({});
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(model(batch.data), batch.target);
      loss.backward();  // averages the gradients over the ranks meanwhile
      optimizer.step();
      mean += loss.detach() / 8;  // batches of an epoch
    }
    lockstep::all_reduce(*group, mean, lockstep::ReduceOp::kAverage)  // (*)
        .wait();
    if (epoch % 10 == 9) report(epoch + 1, mean.item<double>());
  }
  return mean.item<double>() < 0.3 ? 0 : 1;
}
