// Does not compile, and the compiler says why: a wrapper of a module that the
// caller keeps, which would be a copy. LOCKSTEP_WRAPPER is one of them.
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

void wrap(Net& net) { lockstep::LOCKSTEP_WRAPPER wrapper(net); }
