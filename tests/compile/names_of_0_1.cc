// Must compile, with a warning: a program that uses the names of version 0.1.
#include "lockstep/names_of_0_1.h"

namespace hvd = lockstep;

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

int ranks(const std::shared_ptr<Net>& net) {
  hvd::init();
  hvd::DistributedOptimizer optimizer(torch::optim::SGD(net->parameters(), 0.1),
                                      net->named_parameters());
  lockstep::DataParallel divided(net);
  lockstep::MirroredStrategy strategy;
  return hvd::size() + strategy.num_replicas_in_sync();
}
