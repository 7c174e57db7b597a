// The names of version 0.1, in which the interfaces of Horovod, TensorFlow and
// torch.nn.DataParallel stood in the namespace lockstep, and lockstep.h had
// them. Deprecated: the next release has no such header.
#pragma once

#warning \
    "names_of_0_1.h will go: use lockstep::horovod, strategies, data_parallel"

#include "lockstep/lockstep.h"
#include "lockstep/torch/data_parallel.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/strategies.h"

namespace lockstep {
using namespace data_parallel;
using namespace horovod;
using namespace strategies;
}  // namespace lockstep
