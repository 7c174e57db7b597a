// Distributed SGD by hand: every rank computes the gradients of its own share
// of the batch, all average them, all take the same step.
//
//     lockstep run -n 4 ./distributed_sgd
//
// DistributedDataParallel does the same, faster, and while backward runs; see
// quickstart.cc.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

using lockstep::ProcessGroup;

struct Share {
  at::Tensor points, labels;
};

// This rank's share of 1024 points, labelled by whether they lie in a circle.
// All ranks have the same seed, and so draw the same 1024 points.
Share share_of_data(const ProcessGroup& group) {
  torch::manual_seed(1234);
  const at::Tensor points = torch::rand({1024, 2}) * 2 - 1;
  const at::Tensor labels = points.square().sum(1).lt(0.6).to(torch::kLong);
  const std::int64_t length = 1024 / group.size();
  const std::int64_t begin = group.rank() * length;
  return {points.narrow(0, begin, length), labels.narrow(0, begin, length)};
}

void average_gradients(ProcessGroup& group, const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters())
    lockstep::all_reduce(group, parameter.grad(), lockstep::ReduceOp::kAverage)
        .wait();
}

// Whether this rank's parameters are rank 0's, to the last bit.
bool equals_rank_zero(ProcessGroup& group, const torch::nn::Module& model) {
  bool equal = true;
  for (const at::Tensor& parameter : model.parameters()) {
    const at::Tensor theirs = parameter.detach().clone();
    lockstep::broadcast(group, theirs, 0).wait();
    equal = equal && theirs.equal(parameter.detach());
  }
  return equal;
}

int main() {
  const auto group = lockstep::init_process_group();
  const auto [points, labels] = share_of_data(*group);
  const std::int64_t batch = 128 / group->size();

  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 2));
  torch::optim::SGD optimizer(model->parameters(), 0.5);

  double loss_of_epoch = 0;
  for (int epoch = 1; epoch <= 30; ++epoch) {
    at::Tensor total = torch::zeros({});
    for (std::int64_t i = 0; i + batch <= points.size(0); i += batch) {
      optimizer.zero_grad();
      const at::Tensor loss =
          torch::cross_entropy_loss(model->forward(points.narrow(0, i, batch)),
                                    labels.narrow(0, i, batch));
      loss.backward();
      average_gradients(*group, *model);
      optimizer.step();
      total += loss.detach() * batch / points.size(0);
    }
    lockstep::all_reduce(*group, total, lockstep::ReduceOp::kAverage).wait();
    loss_of_epoch = total.item<double>();
    if (group->rank() == 0 && epoch % 10 == 0)
      std::printf("epoch %d: mean loss %.3f\n", epoch, loss_of_epoch);
  }

  const bool equal = equals_rank_zero(*group, *model);
  std::printf("parameters %s rank 0's\n", equal ? "equal" : "DIFFER FROM");
  return equal && loss_of_epoch < 0.3 ? 0 : 1;
}
