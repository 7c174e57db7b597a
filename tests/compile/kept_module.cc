// Must not compile, with a reason in the compiler's message: wrapping a module
// that the caller keeps would copy it. LOCKSTEP_WRAPPER is the wrapper.
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/distributed_data_parallel.h"

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& input) { return input; }
};

using namespace lockstep;
using data_parallel::DataParallel;

void wrap(Net& net) { LOCKSTEP_WRAPPER wrapper(net); }
